# headrace-plan: the planner for people. It links service/plan and nothing else of the service.
find_package(nlohmann_json REQUIRED)
add_executable(headrace-plan
  plan/curves.cc plan/gantt.cc plan/main.cc plan/options.cc plan/run.cc plan/show.cc plan/simulate.cc plan/svg.cc
  plan/sweep.cc plan/words.cc)
target_sources(headrace-plan
  PRIVATE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES
    plan/curves.h plan/gantt.h plan/options.h plan/run.h plan/show.h plan/simulate.h plan/svg.h plan/sweep.h
    plan/words.h)
target_link_libraries(headrace-plan PRIVATE headrace_plan CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json)
install(TARGETS headrace-plan RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
