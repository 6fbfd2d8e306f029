// A third-party shared library that is opened at run time: one program runs with and without it.
//
// It stays loaded until the process ends, even when its owner is gone: such libraries start threads
// of their own and do not survive being unloaded.
#pragma once

#include <string>

#include "ipc/base/result.h"
#include "ipc/base/unique_handle.h"

namespace headrace::transport {

struct LibraryTraits {
  using Value = void*;
  static Value None() { return nullptr; }
  static void Release(Value library);
};
using Library = UniqueHandle<LibraryTraits>;

// What the loader says of the last dlopen or dlsym on this thread that failed.
std::string LoaderError();

class OpenedLibrary {
 public:
  // `path` as dlopen takes it. kNotFound, with what the loader says.
  static Result<OpenedLibrary> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Null where the library has no such symbol.
  void* Find(const char* symbol);
  // The first symbol that Find did not find, null if there is none. Not copied.
  const char* missing() const { return missing_; }

 private:
  OpenedLibrary(std::string path, Library handle)
      : path_(std::move(path)), handle_(std::move(handle)) {}

  std::string path_;
  Library handle_;
  const char* missing_ = nullptr;
};

}  // namespace headrace::transport
