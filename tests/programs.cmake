# Test programs of GoogleTest's:
#   headrace_discover_tests(PROGRAM [ONE_THREAD] [TEST_PREFIX PREFIX] [PROPERTIES ...])
# Each test is one of ctest's, in a process of its own. Under a sanitizer the whole program is one test: to
# start it for each test would cost more than most tests. ONE_THREAD is for programs that start no thread, of which
# the thread sanitizer can find nothing. Where it builds, they are left out unless HEADRACE_ONE_THREAD is ON;
# without a sanitizer such a program ends when it does start one (support/one_thread.cc).
set(one_thread ON)
if(HEADRACE_SANITIZE STREQUAL "thread")
  set(one_thread OFF)
endif()
option(HEADRACE_ONE_THREAD "Build and run tests that have one thread too" ${one_thread})
# All that tests under the thread sanitizer start.
add_custom_target(threaded DEPENDS headraced cuda_double nccl_double)

function(headrace_discover_tests program)
  cmake_parse_arguments(PARSE_ARGV 1 given "ONE_THREAD" "TEST_PREFIX" "PROPERTIES")
  if(given_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "headrace_discover_tests(${program}) does not know ${given_UNPARSED_ARGUMENTS}")
  endif()
  set(properties "${given_PROPERTIES}")
  if(given_ONE_THREAD)
    if(NOT HEADRACE_ONE_THREAD)
      return()
    endif()
    list(APPEND properties LABELS one_thread)
  endif()
  add_dependencies(threaded ${program})
  if(NOT HEADRACE_SANITIZE STREQUAL "")
    add_test(NAME whole.${program} COMMAND ${program} --gtest_brief=1)
    set_tests_properties(whole.${program} PROPERTIES ${properties} TIMEOUT 1800)
    return()
  endif()
  if(given_ONE_THREAD)
    target_link_libraries(${program} PRIVATE headrace_one_thread)
  endif()
  gtest_discover_tests(${program} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 TEST_PREFIX "${given_TEST_PREFIX}"
    PROPERTIES ${properties})
endfunction()
