#include "service/peers/wire_limits.h"

namespace headrace::service {

Error Corrupt(const std::string& what) { return Error(Code::kCorrupt, "a service sent " + what); }

}  // namespace headrace::service
