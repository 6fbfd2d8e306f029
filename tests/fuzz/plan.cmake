# Fuzz targets of what the planner reads, as those of CMakeLists.txt.
function(headrace_plan_fuzz name)
  set(corpus ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name}_corpus)
  add_executable(${name}_fuzz ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name}_fuzz.cc)
  target_link_libraries(${name}_fuzz PRIVATE headrace_plan)
  if(HEADRACE_FUZZ)
    target_compile_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    add_test(NAME fuzz.${name}
             COMMAND ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/follow $<TARGET_FILE:${name}_fuzz> ${corpus}
                     -runs=50000 -seed=1)
  else()
    target_sources(${name}_fuzz PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/mutating_driver.cc)
    add_test(NAME fuzz.${name} COMMAND ${name}_fuzz ${corpus} 50000 1)
  endif()
endfunction()

headrace_plan_fuzz(profile)
headrace_plan_fuzz(plan)
