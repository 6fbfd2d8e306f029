#include "transport/memory/library.h"

#include <dlfcn.h>

namespace headrace::transport {

std::string LoaderError() {
  const char* words = ::dlerror();
  return words != nullptr ? words : "the loader gives no reason";
}

void LibraryTraits::Release(Value library) { ::dlclose(library); }

Result<OpenedLibrary> OpenedLibrary::Open(const std::string& path) {
  Library handle(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
  if (!handle) return Error(Code::kNotFound, LoaderError());
  return OpenedLibrary(path, std::move(handle));
}

void* OpenedLibrary::Find(const char* symbol) {
  void* found = ::dlsym(handle_.get(), symbol);
  if (found == nullptr && missing_ == nullptr) missing_ = symbol;
  return found;
}

}  // namespace headrace::transport
