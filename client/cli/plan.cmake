# headrace-plan: the planner for people. It links service/plan and nothing else of the service.
find_package(nlohmann_json REQUIRED)
add_library(headrace_plan_tool STATIC)
target_sources(headrace_plan_tool
  PRIVATE plan/curves.cc plan/gantt.cc plan/options.cc plan/run.cc plan/show.cc plan/simulate.cc plan/svg.cc
    plan/sweep.cc plan/words.cc
  PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES
    options/range.h plan/curves.h plan/gantt.h plan/options.h plan/run.h plan/show.h plan/simulate.h plan/svg.h plan/sweep.h
    plan/words.h)
target_link_libraries(headrace_plan_tool
  PUBLIC headrace_plan CLI11::CLI11 PRIVATE fmt::fmt nlohmann_json::nlohmann_json)
set_target_properties(headrace_plan_tool PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)

add_executable(headrace-plan plan/main.cc)
target_link_libraries(headrace-plan PRIVATE headrace_plan_tool)
headrace_install_program(headrace-plan planner)
