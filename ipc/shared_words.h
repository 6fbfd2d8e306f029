// Copying memory that another process may be writing: in 8-byte words with relaxed atomics, so that
// each word is read or written exactly once and whole. What orders the words is a version, sequence
// or commit word beside them. Addresses are 8-byte aligned in the shared memory, sizes multiples
// of 8.
#pragma once

#include <cstddef>

namespace headrace::ipc {

void StoreWords(void* shared, const void* source, std::size_t size);
void LoadWords(void* target, const void* shared, std::size_t size);

}  // namespace headrace::ipc
