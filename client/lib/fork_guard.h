// Tells a forked child from the process that opened the session, without a system call for each
// check and without a fork handler of the process: it is one page that the kernel clears in the
// child.
#pragma once

#include "ipc/base/result.h"
#include "ipc/base/unique_handle.h"

namespace headrace::client {

struct GuardPageTraits {
  using Value = void*;
  static Value None() { return nullptr; }
  static void Release(Value page);
};

class ForkGuard {
 public:
  static Result<ForkGuard> Create();

  // Thread-safe. Whether this process was forked after Create.
  bool InChild() const { return *static_cast<const volatile int*>(page_.get()) == 0; }

 private:
  explicit ForkGuard(void* page) : page_(page) {}
  UniqueHandle<GuardPageTraits> page_;
};

}  // namespace headrace::client
