// Where each field of what is shared lies, as the compiler has it.
#pragma once

#include <cstddef>
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace headrace::ipc {

struct Field {
  std::size_t offset = 0;
  std::size_t size = 0;
  std::string name;  // "-" for what lies between fields
  friend bool operator==(const Field&, const Field&) = default;
  friend void PrintTo(const Field& field, std::ostream* out) {
    *out << field.offset << "+" << field.size << " " << field.name;
  }
};

struct Layout {
  std::size_t size = 0;
  std::vector<Field> fields;
};

#define FIELD(type, field) \
  Field { offsetof(type, field), sizeof(type::field), #field }

// The layouts of the board and all of its rows.
std::map<std::string, Layout> BoardLayoutsOfCode();

}  // namespace headrace::ipc
