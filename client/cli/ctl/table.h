// Text in aligned columns.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::ctl {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::initializer_list<Column> columns) : columns_(columns) {}

  // One cell a column; an empty cell prints as "-", so that every line has all its columns.
  void Add(std::vector<std::string> cells);

  // Columns are two blanks apart and as wide as their widest cell; no blanks at the end of a line.
  std::string Render(bool with_header) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace headrace::ctl
