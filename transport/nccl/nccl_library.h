// NCCL, opened at run time: a program that uses it runs where it is not installed.
//
// Never unloaded: NCCL keeps threads of its own. Thread-safe after Open.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ipc/base/collective.h"
#include "ipc/base/result.h"
#include "transport/memory/library.h"
#include "transport/nccl/nccl_abi.h"

namespace headrace::transport {

inline constexpr std::string_view kNcclLibrary = "libnccl.so.2";
// Before it, what a group of calls does in the background stood in memory of the thread that ended
// the group (src/group.cc, ncclGroupJobMain), while other threads here ask and abort the rank, also
// after that thread has ended: https://github.com/NVIDIA/nccl/issues/1605.
inline constexpr int kNcclVersionMin = 22703;

class NcclLibrary {
 public:
  // Loads `library` and resolves every function. Errors: kNotFound without it, kVersionMismatch for
  // one that is too old or something else; each says what to do.
  static Result<std::unique_ptr<NcclLibrary>> Open(const std::string& library);

  const NcclFunctions& call() const { return functions_; }
  int version() const { return version_; }  // 22203 = 2.22.3

  // "doing: NCCL says remote process exited (last: ...)", with what the caller may do as its code.
  // `comm` is whose last words are added; null: those of the process.
  Error Failed(NcclResult result, std::string_view doing, NcclComm comm = nullptr) const;
  // Ok, or Failed. Calls that go on in the background are ok.
  Status Check(NcclResult result, std::string_view doing, NcclComm comm = nullptr) const;

 private:
  explicit NcclLibrary(OpenedLibrary library) : library_(std::move(library)) {}
  Status CheckVersion();
  Status Resolve();

  OpenedLibrary library_;
  NcclFunctions functions_;
  int version_ = 0;
};

// What the caller may do about it.
Code CodeOf(NcclResult result);
// "2.22.3"
std::string NcclVersionText(int version);

NcclType NcclTypeOf(DType dtype);
// For all reductions but averages, whose divisor decides.
NcclReduction NcclReductionOf(Reduction reduction);

}  // namespace headrace::transport
