# Fuzz targets of what the planner reads. With clang they are libFuzzer's and sanitized; with other
# compilers a driver replays the corpus and seeded mutations of it.
function(headrace_plan_fuzz name)
  set(corpus ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name}_corpus)
  add_executable(${name}_fuzz ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name}_fuzz.cc)
  target_link_libraries(${name}_fuzz PRIVATE headrace_plan)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND HEADRACE_SANITIZE STREQUAL "")
    target_compile_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    # New inputs go to a folder of the build tree, not into the sources.
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${name}_found)
    add_test(NAME fuzz.${name}
             COMMAND ${name}_fuzz -runs=50000 -seed=1 ${CMAKE_CURRENT_BINARY_DIR}/${name}_found ${corpus})
  else()
    target_sources(${name}_fuzz PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/mutating_driver.cc)
    add_test(NAME fuzz.${name} COMMAND ${name}_fuzz ${corpus} 50000 1)
  endif()
endfunction()

headrace_plan_fuzz(profile)
headrace_plan_fuzz(plan)
