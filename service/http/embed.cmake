# Writes OUTPUT, the C++ source of HttpAssets(), from the files of the status page in FOLDER.
# cmake -DFOLDER=... -DOUTPUT=... -DFILES=index.html,style.css,... -P embed.cmake
string(REPLACE "," ";" FILES "${FILES}")
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")
set(arrays "")
set(rows "")
set(index 0)
foreach(file ${FILES})
  file(READ "${FOLDER}/${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  # Lines of a length that editors and compilers like.
  string(REGEX REPLACE "(('[^']*',)('[^']*',)('[^']*',)('[^']*',)('[^']*',)('[^']*',)('[^']*',)('[^']*',))"
    "\\1\n    " bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${index}[] = {\n    ${bytes}};\n")
  string(REGEX REPLACE ".*\\." "" extension "${file}")
  set(path "/page/${file}")
  if(file STREQUAL "index.html")
    set(path "/")
  endif()
  string(APPEND rows "    HttpAsset{\"${path}\", \"${type_${extension}}\", {kFile${index}, sizeof kFile${index}}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made from the files of service/http/page by embed.cmake.
#include \"service/http/http_assets.h\"

namespace headrace::service {
namespace {

${arrays}
constexpr HttpAsset kAssets[] = {
${rows}};

}  // namespace

std::span<const HttpAsset> HttpAssets() { return kAssets; }

}  // namespace headrace::service
")
