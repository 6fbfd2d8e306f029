# What tests/run builds a second time, by clang under a sanitizer, and runs among all other tests:
# the whole suites under sanitizers (--sanitize) take longer. Two parts, each in a folder of HEADRACE_PARTS:
#  - part-address: what reads bytes that strangers write, and libFuzzer, which follows that code;
#  - part-thread: what several threads share.
# A build under a sanitizer has the target `part`, the programs; the build without has the tests.
set(HEADRACE_PARTS "" CACHE STRING "Folder with the sanitized builds whose tests run here too; empty: none")

set(headrace_part_address ipc_test http_test tls_test exchange_test)
# Who sends nonsense, lies, or goes in the middle; the others take minutes and read nothing of strangers.
set(headrace_part_address_exchange_test
    "ExchangeHostile*:Of/ExchangeLie*:Of/ExchangeMismatch*:ExchangeEnd.*:ExchangeEncoded*:ExchangeFactors*:ExchangeLossless*:ExchangeAfterAFailure*")
set(headrace_part_address_fuzz record dispatch schema peer forming socket message sends planner)
set(headrace_part_thread
    ipc_test actor_test lane_test log_sink_test rpc_test dispatch_threads_test loop_test mapping_test
    watch_test)
# How many inputs a fixed seed gives; a fresh seed, which is printed, gets as many seconds.
set(headrace_part_inputs_record 100000)
set(headrace_part_inputs_dispatch 1500)
set(headrace_part_inputs_schema 10000)
set(headrace_part_inputs_peer 100000)
set(headrace_part_inputs_forming 300)
set(headrace_part_inputs_socket 1500)
set(headrace_part_inputs_message 3000)
set(headrace_part_inputs_sends 500)
set(headrace_part_inputs_planner 1000)
set(headrace_part_fresh_s 10)

if(NOT HEADRACE_SANITIZE STREQUAL "")
  set(programs ${headrace_part_${HEADRACE_SANITIZE}})
  foreach(name ${headrace_part_${HEADRACE_SANITIZE}_fuzz})
    list(APPEND programs ${name}_fuzz)
  endforeach()
  add_custom_target(part)
  foreach(program ${programs})
    if(TARGET ${program})  # without UCX some are not there
      add_dependencies(part ${program})
    endif()
  endforeach()
  return()
endif()
if(HEADRACE_PARTS STREQUAL "")
  return()
endif()

# The thread sanitizer needs mappings where it expects them: see tests/run.
set(headrace_part_launcher_thread "")
find_program(SETARCH_PROGRAM setarch)
if(SETARCH_PROGRAM)
  execute_process(COMMAND ${SETARCH_PROGRAM} -R true RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    set(headrace_part_launcher_thread ${SETARCH_PROGRAM} -R)
  endif()
endif()
# As tests/run sets it, for who runs ctest alone.
set(headrace_part_environment_address "")
set(headrace_part_environment_thread
    "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/support/tsan.supp:second_deadlock_stack=1:allow_addr2line=1")
foreach(kind address thread)
  foreach(program ${headrace_part_${kind}})
    if(NOT TARGET ${program})
      continue()
    endif()
    set(filter "")
    if(DEFINED headrace_part_${kind}_${program})
      set(filter "--gtest_filter=${headrace_part_${kind}_${program}}")
    endif()
    add_test(NAME ${kind}.${program}
             COMMAND ${headrace_part_launcher_${kind}} ${HEADRACE_PARTS}/part-${kind}/${program}
                     --gtest_brief=1 ${filter})
    # See tests/unit/transport for UCX's hooks.
    set_tests_properties(${kind}.${program} PROPERTIES TIMEOUT 600
      ENVIRONMENT "UCX_MEM_EVENTS=n;${headrace_part_environment_${kind}}")
  endforeach()
endforeach()
foreach(name ${headrace_part_address_fuzz})
  set(follow ${CMAKE_CURRENT_LIST_DIR}/fuzz/follow ${HEADRACE_PARTS}/part-address/${name}_fuzz
      ${CMAKE_BINARY_DIR}/tests/fuzz/seeds/${name})
  add_test(NAME address.fuzz.${name} COMMAND ${follow} -seed=1 -runs=${headrace_part_inputs_${name}})
  add_test(NAME address.fuzz.${name}.fresh
           COMMAND ${follow} -max_total_time=${headrace_part_fresh_s})
  set_tests_properties(address.fuzz.${name} address.fuzz.${name}.fresh
    PROPERTIES FIXTURES_REQUIRED fuzz_seeds TIMEOUT 600)
endforeach()
