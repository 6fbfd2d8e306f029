# headracectl replay: a job of the C library's, played from a profile.
find_package(nlohmann_json REQUIRED)
add_library(headrace_replay STATIC)
target_sources(headrace_replay
  PRIVATE replay/command.cc replay/pace.cc replay/plan_watch.cc replay/profile.cc replay/rank_session.cc
    replay/replay_rank.cc replay/report.cc replay/run.cc replay/trace.cc replay/values.cc
  PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES
    replay/command.h replay/pace.h replay/plan_watch.h replay/profile.h replay/rank_session.h
    replay/replay_rank.h replay/report.h replay/run.h replay/trace.h replay/values.h)
target_link_libraries(headrace_replay
  PUBLIC headrace_client headrace_ctl headrace_ipc headrace_profile headrace_option_range nlohmann_json::nlohmann_json
  PRIVATE fmt::fmt)
set_target_properties(headrace_replay PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON
  UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
