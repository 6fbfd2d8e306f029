#include "client/lib/options.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "tests/support/expect_text.h"

namespace headrace::client {
namespace {

using Variables = std::map<std::string, std::string>;

Status Fill(const Variables& variables, hr_options& options) {
  return FillOptions(
      [&variables](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      options);
}

hr_options Complete() {
  hr_options options;
  EXPECT_TRUE(Fill({{"HEADRACE_JOB", "a"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}}, options).ok());
  return options;
}

TEST(Options, HaveDefaultsWhereTheEnvironmentSaysNothing) {
  hr_options options;
  ASSERT_TRUE(Fill({}, options).ok());
  EXPECT_EQ(options.size, sizeof options);
  EXPECT_STREQ(options.socket_path, "/run/headrace/headrace.sock");
  EXPECT_STREQ(options.job, "");
  EXPECT_EQ(options.rank, HR_UNSET);
  EXPECT_EQ(options.world_size, HR_UNSET);
  EXPECT_EQ(options.timeout_ms, 0U);
  EXPECT_GT(options.call_timeout_ms, 0U);
}

TEST(Options, TakeTorchrunsEnvironment) {
  hr_options options;
  ASSERT_TRUE(Fill({{"RANK", "3"},
                    {"WORLD_SIZE", "4"},
                    {"TORCHELASTIC_RUN_ID", "run-17"},
                    {"MASTER_ADDR", "node1"},
                    {"MASTER_PORT", "29500"}},
                   options)
                  .ok());
  EXPECT_EQ(options.rank, 3U);
  EXPECT_EQ(options.world_size, 4U);
  EXPECT_STREQ(options.job, "run-17");
}

TEST(Options, NameTheJobAfterTheRendezvousWhenTorchrunHasNoRunId) {
  hr_options options;
  const Variables address = {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
  ASSERT_TRUE(Fill(address, options).ok());
  EXPECT_STREQ(options.job, "node1:29500");
  Variables none = address;
  none["TORCHELASTIC_RUN_ID"] = "none";
  ASSERT_TRUE(Fill(none, options).ok());
  EXPECT_STREQ(options.job, "node1:29500");
}

TEST(Options, PreferOurOwnVariables) {
  hr_options options;
  ASSERT_TRUE(Fill({{"HEADRACE_JOB", "mine"},
                    {"TORCHELASTIC_RUN_ID", "run"},
                    {"HEADRACE_SOCKET", "/tmp/s"},
                    {"HEADRACE_TIMEOUT_MS", "250"},
                    {"HEADRACE_SPIN_US", "5"}},
                   options)
                  .ok());
  EXPECT_STREQ(options.job, "mine");
  EXPECT_STREQ(options.socket_path, "/tmp/s");
  EXPECT_EQ(options.timeout_ms, 250U);
  EXPECT_EQ(options.spin_us, 5U);
}

TEST(Options, NameEachVariableThatMakesNoSenseAndFillTheRest) {
  hr_options options;
  const Status status =
      Fill({{"RANK", "two"}, {"WORLD_SIZE", "-4"}, {"HEADRACE_JOB", "mine"}}, options);
  ASSERT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.error().text().find("RANK=\"two\""), std::string::npos);
  EXPECT_NE(status.error().text().find("WORLD_SIZE=\"-4\""), std::string::npos);
  EXPECT_EQ(options.rank, HR_UNSET);
  EXPECT_STREQ(options.job, "mine");
}

TEST(Options, RefuseNumbersThatDoNotFit) {
  hr_options options;
  EXPECT_FALSE(Fill({{"RANK", "4294967295"}}, options).ok());
  EXPECT_FALSE(Fill({{"RANK", "99999999999"}}, options).ok());
  EXPECT_FALSE(Fill({{"RANK", "1 "}}, options).ok());
  EXPECT_TRUE(Fill({{"RANK", "4294967294"}}, options).ok());
}

TEST(Options, RefuseTextsThatDoNotFitInsteadOfCuttingThem) {
  hr_options options;
  const Status job = Fill({{"HEADRACE_JOB", std::string(64, 'j')}}, options);
  EXPECT_EQ(job.code(), Code::kInvalidArgument);
  EXPECT_STREQ(options.job, "");
  EXPECT_TRUE(Fill({{"HEADRACE_JOB", std::string(63, 'j')}}, options).ok());
  EXPECT_FALSE(Fill({{"HEADRACE_SOCKET", "/" + std::string(107, 's')}}, options).ok());
}

TEST(Options, AreCompleteOrSayWhatIsMissingAndHowToGiveIt) {
  EXPECT_TRUE(CheckOptions(Complete()).ok());

  hr_options no_job = Complete();
  no_job.job[0] = '\0';
  EXPECT_NE(CheckOptions(no_job).error().text().find("HEADRACE_JOB"), std::string::npos);

  hr_options no_rank = Complete();
  no_rank.rank = HR_UNSET;
  EXPECT_NE(CheckOptions(no_rank).error().text().find("RANK"), std::string::npos);

  hr_options beyond = Complete();
  beyond.rank = 4;
  EXPECT_NE(CheckOptions(beyond).error().text().find("rank 4 of 4"), std::string::npos);
}

TEST(Options, RefuseJobNamesTheServiceWouldRefuse) {
  hr_options options = Complete();
  std::strcpy(options.job, "two words");
  EXPECT_EQ(CheckOptions(options).code(), Code::kInvalidArgument);
  std::strcpy(options.job, "caf\xc3\xa9");
  EXPECT_EQ(CheckOptions(options).code(), Code::kInvalidArgument);
}

TEST(Options, RefuseAStructureOfAnotherSizeOrWithoutNul) {
  hr_options options = Complete();
  options.size = 8;
  EXPECT_NE(CheckOptions(options).error().text().find("hr_options_init"), std::string::npos);
  options = Complete();
  std::memset(options.program, 'p', sizeof options.program);
  EXPECT_EQ(CheckOptions(options).code(), Code::kInvalidArgument);
}

TEST(Options, MeetNowhereUnlessTheEnvironmentSaysThatTheJobSpansNodes) {
  hr_options options;
  const Variables one_node = {
      {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}};
  for (Variables variables : {Variables{}, Variables{{"MASTER_ADDR", "node1"}}, one_node}) {
    ASSERT_TRUE(Fill(variables, options).ok());
    EXPECT_STREQ(options.rendezvous, "");
    EXPECT_STREQ(options.architecture, "");
  }
  Variables spanning = one_node;
  spanning["LOCAL_WORLD_SIZE"] = "2";
  ASSERT_TRUE(Fill(spanning, options).ok());
  EXPECT_STREQ(options.rendezvous, "node1");
  spanning["MASTER_ADDR"] = "fe80::1";
  ASSERT_TRUE(Fill(spanning, options).ok());
  EXPECT_STREQ(options.rendezvous, "[fe80::1]");
  spanning.erase("MASTER_ADDR");
  ASSERT_TRUE(Fill(spanning, options).ok());
  EXPECT_STREQ(options.rendezvous, "");
}

TEST(Options, PreferOurOwnRendezvousAndArchitecture) {
  hr_options options;
  ASSERT_TRUE(Fill({{"HEADRACE_RENDEZVOUS", "node2:7000"},
                    {"HEADRACE_ARCHITECTURE", "parameter-server"},
                    {"WORLD_SIZE", "4"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "node1"}},
                   options)
                  .ok());
  EXPECT_STREQ(options.rendezvous, "node2:7000");
  EXPECT_STREQ(options.architecture, "parameter-server");
}

TEST(Options, RefuseARendezvousThatIsNoAddressAndAnUnknownArchitecture) {
  hr_options options = Complete();
  std::strcpy(options.rendezvous, "node1:7733");
  std::strcpy(options.architecture, "all-reduce");
  EXPECT_TRUE(CheckOptions(options).ok());
  std::strcpy(options.rendezvous, "node 1");
  const auto refusal = [&options] {
    const Status status = CheckOptions(options);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.error().text();
  };
  EXPECT_TEXT(refusal());
  options = Complete();
  std::strcpy(options.architecture, "ring");
  EXPECT_TEXT(refusal());
  std::memset(options.architecture, 'a', sizeof options.architecture);
  EXPECT_TEXT(refusal());
  EXPECT_FALSE(Fill({{"HEADRACE_RENDEZVOUS", std::string(256, 'r')}}, options).ok());
  EXPECT_FALSE(Fill({{"LOCAL_WORLD_SIZE", "two"}}, options).ok());
}

TEST(Options, FillNoMoreThanAnOlderProgramKnows) {
  hr_options options;
  std::memset(&options, '#', sizeof options);
  const Environment environment = [](const char* name) {
    return std::string(name) == "HEADRACE_JOB" ? "old" : nullptr;
  };
  ASSERT_TRUE(FillSizedOptions(environment, kFirstOptionsSize, options).ok());
  EXPECT_EQ(options.size, kFirstOptionsSize);
  EXPECT_STREQ(options.job, "old");
  for (const char letter : options.rendezvous) ASSERT_EQ(letter, '#') << "beyond its memory";
  for (const char letter : options.architecture) ASSERT_EQ(letter, '#');

  hr_options untouched;
  std::memset(&untouched, '#', sizeof untouched);
  EXPECT_EQ(FillSizedOptions(environment, 8, untouched).code(), Code::kInvalidArgument);
  EXPECT_EQ(untouched.job[0], '#');
}

TEST(Options, AreCompletedFromTheEnvironmentForAnOlderProgram) {
  hr_options given = Complete();
  given.size = kFirstOptionsSize;
  std::memset(given.rendezvous, '#', sizeof given.rendezvous);  // not its memory
  const Environment environment = [](const char* name) {
    return std::string(name) == "HEADRACE_RENDEZVOUS" ? "node1" : nullptr;
  };
  const Result<hr_options> whole = WholeOptions(environment, given);
  ASSERT_TRUE(whole.ok()) << whole.error().text();
  EXPECT_EQ(whole->size, sizeof(hr_options));
  EXPECT_STREQ(whole->job, "a");
  EXPECT_EQ(whole->rank, 1U);
  EXPECT_STREQ(whole->rendezvous, "node1");
  EXPECT_STREQ(whole->architecture, "");

  const hr_options current = Complete();
  EXPECT_STREQ(WholeOptions(environment, current)->rendezvous, "") << "it has said so itself";
  given.size = 300;
  EXPECT_FALSE(WholeOptions(environment, given).ok());
}

TEST(Options, HaveReconnectingOffUnlessTheEnvironmentSaysForHowLong) {
  hr_options options;
  ASSERT_TRUE(Fill({}, options).ok());
  EXPECT_EQ(options.reconnect_s, 0U);
  ASSERT_TRUE(Fill({{"HEADRACE_RECONNECT", "30"}}, options).ok());
  EXPECT_EQ(options.reconnect_s, 30U);
  EXPECT_FALSE(Fill({{"HEADRACE_RECONNECT", "yes"}}, options).ok());
}

TEST(Options, JoinOnlyWhenTorchrunHasStartedTheProcessAgain) {
  hr_options options;
  ASSERT_TRUE(Fill({{"HEADRACE_ROLE", "rejoin"}}, options).ok());
  EXPECT_EQ(options.role, HR_ROLE_RANK);
  ASSERT_TRUE(
      Fill({{"HEADRACE_ROLE", "rejoin"}, {"TORCHELASTIC_RESTART_COUNT", "0"}}, options).ok());
  EXPECT_EQ(options.role, HR_ROLE_RANK);
  ASSERT_TRUE(
      Fill({{"HEADRACE_ROLE", "rejoin"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}, options).ok());
  EXPECT_EQ(options.role, HR_ROLE_JOIN);
  ASSERT_TRUE(Fill({{"TORCHELASTIC_RESTART_COUNT", "2"}}, options).ok());
  EXPECT_EQ(options.role, HR_ROLE_RANK) << "nobody has asked for it";
  EXPECT_TEXT(Fill({{"HEADRACE_ROLE", "rejoin"}, {"TORCHELASTIC_RESTART_COUNT", "x"}}, options)
                  .error()
                  .text(),
              "TORCHELASTIC_RESTART_COUNT");
  EXPECT_TEXT(Fill({{"HEADRACE_ROLE", "leader"}}, options).error().text(), "HEADRACE_ROLE",
              "rank, join, spare, rejoin");
}

TEST(Options, HaveARejoiningProgramJoinOnlyWhenTorchrunHasStartedItAgain) {
  static const char* restarts = nullptr;
  const Environment environment = [](const char* name) {
    return std::string(name) == "TORCHELASTIC_RESTART_COUNT" ? restarts : nullptr;
  };
  hr_options given = Complete();
  given.role = HR_ROLE_REJOIN;
  for (const std::size_t size : {sizeof(hr_options), kFifthOptionsSize}) {
    given.size = size;
    restarts = nullptr;
    EXPECT_EQ(WholeOptions(environment, given)->role, static_cast<unsigned>(HR_ROLE_RANK)) << size;
    restarts = "0";
    EXPECT_EQ(WholeOptions(environment, given)->role, static_cast<unsigned>(HR_ROLE_RANK)) << size;
    restarts = "1";
    EXPECT_EQ(WholeOptions(environment, given)->role, static_cast<unsigned>(HR_ROLE_JOIN)) << size;
    restarts = "x";
    EXPECT_TEXT(WholeOptions(environment, given).error().text(), "TORCHELASTIC_RESTART_COUNT");
  }
  given.size = sizeof given;
  given.role = HR_ROLE_SPARE;
  EXPECT_EQ(WholeOptions(environment, given)->role, static_cast<unsigned>(HR_ROLE_SPARE))
      << "whatever torchrun says";
  given.role = HR_ROLE_REJOIN + 1;
  EXPECT_TEXT(CheckOptions(given).error().text(), "role 4", "3 (rejoin)");
}

TEST(Options, KeepWhatAProgramSaidThatKnowsNoReconnecting) {
  const Environment environment = [](const char* name) {
    const std::string asked = name;
    return asked == "HEADRACE_RECONNECT" ? "7" : asked == "HEADRACE_RENDEZVOUS" ? "node1" : nullptr;
  };
  hr_options given = Complete();
  given.size = kSecondOptionsSize;
  std::strcpy(given.rendezvous, "node2");
  std::memset(&given.reconnect_s, '#', sizeof given.reconnect_s);  // not its memory
  const Result<hr_options> whole = WholeOptions(environment, given);
  ASSERT_TRUE(whole.ok()) << whole.error().text();
  EXPECT_STREQ(whole->rendezvous, "node2");
  EXPECT_EQ(whole->reconnect_s, 7U);
  ASSERT_TRUE(FillSizedOptions(environment, kSecondOptionsSize, given).ok());
  EXPECT_EQ(given.size, kSecondOptionsSize);
  EXPECT_NE(given.reconnect_s, 7U) << "beyond its memory";
}

TEST(Options, HaveAClassOfSendsThatOlderProgramsGetFromTheEnvironment) {
  const Environment environment = [](const char* name) {
    return std::string_view(name) == "HEADRACE_SENDS_CLASS" ? "same" : nullptr;
  };
  hr_options options;
  ASSERT_TRUE(FillOptions(environment, options).ok());
  EXPECT_STREQ(options.sends_class, "same");
  hr_options given = Complete();
  given.size = kFourthOptionsSize;
  given.reconnect_s = 3;
  given.shrink_grace_ms = 77;
  std::memset(given.sends_class, '#', sizeof given.sends_class);  // not its memory
  const Result<hr_options> whole = WholeOptions(environment, given);
  ASSERT_TRUE(whole.ok()) << whole.error().text();
  EXPECT_STREQ(whole->sends_class, "same");
  EXPECT_EQ(whole->reconnect_s, 3U);
  EXPECT_EQ(whole->shrink_grace_ms, 77U);
  hr_options wrong = Complete();
  std::strcpy(wrong.sends_class, "below");
  EXPECT_EQ(CheckOptions(wrong).code(), Code::kInvalidArgument);
  std::strcpy(wrong.sends_class, "above");
  EXPECT_TRUE(CheckOptions(wrong).ok());
}

TEST(Options, SayWhoIsSlowAndWhetherItIsEvicted) {
  const char* said = nullptr;
  const Environment environment = [&said](const char* name) {
    return std::string_view(name) == "HEADRACE_SLOW" ? said : nullptr;
  };
  const auto fill = [&](const char* text) {
    said = text;
    hr_options options;
    const Status status = FillOptions(environment, options);
    EXPECT_TRUE(status.ok() || options.slow_bound_s + options.slow_evict == 0) << text;
    return std::tuple(status.ok(), options.slow_bound_s, options.slow_evict);
  };
  EXPECT_EQ(fill(nullptr), std::tuple(true, 0U, 0U));
  EXPECT_EQ(fill("30"), std::tuple(true, 30U, 0U));
  EXPECT_EQ(fill("30:evict"), std::tuple(true, 30U, 1U));
  for (const char* wrong : {"soon", "30:", "30:name", "30evict", ":evict", "-1", "4294967296"}) {
    EXPECT_EQ(fill(wrong), std::tuple(false, 0U, 0U)) << wrong;
  }
  said = "30:evict";
  hr_options given = Complete();
  given.size = kFifthOptionsSize;
  std::memset(&given.slow_bound_s, '#', sizeof given.slow_bound_s);  // not its memory
  const Result<hr_options> whole = WholeOptions(environment, given);
  ASSERT_TRUE(whole.ok()) << whole.error().text();
  EXPECT_EQ(whole->slow_bound_s, 30U);
  EXPECT_EQ(whole->slow_evict, 1U);
}

TEST(Options, RefuseEvictionsOfSlowRanksFromAJobThatDoesNotGoOnWithoutThem) {
  hr_options options = Complete();
  options.slow_evict = 1;
  EXPECT_TEXT(CheckOptions(options).error().text(), "slow_bound_s");
  options.slow_bound_s = 30;
  EXPECT_TEXT(CheckOptions(options).error().text(), "HEADRACE_SHRINK");
  options.shrink_min_world = 2;
  EXPECT_TRUE(CheckOptions(options).ok());
  options.slow_evict = 2;
  EXPECT_EQ(CheckOptions(options).code(), Code::kInvalidArgument);
  options.slow_evict = 0;
  options.slow_bound_s = 86'401;
  EXPECT_TEXT(CheckOptions(options).error().text(), "86401", "86400");
}

// As the linker finds it for a program compiled before.
TEST(LayoutOptions, AverageByThePolicyOfTheEnvironment) {
  const auto fill = [](const char* policy, hr_layout_options& options) {
    return FillLayoutOptions(
        [policy](const char* name) -> const char* {
          return std::string_view(name) == "HEADRACE_POLICY" ? policy : nullptr;
        },
        sizeof options, options);
  };
  hr_layout_options options;
  ASSERT_TRUE(fill(nullptr, options).ok());
  EXPECT_EQ(options.size, sizeof options);
  EXPECT_EQ(options.reduction, HR_AVERAGE);
  EXPECT_STREQ(options.policy, "");
  ASSERT_TRUE(fill("bytescheduler", options).ok());
  EXPECT_STREQ(options.policy, "bytescheduler");
  const Status longer = fill("a-policy-with-more-than-31-letters", options);
  ASSERT_FALSE(longer.ok());
  EXPECT_NE(longer.error().text().find("HEADRACE_POLICY"), std::string::npos);
  EXPECT_STREQ(options.policy, "");
  const Status sized = FillLayoutOptions([](const char*) { return nullptr; }, 4, options);
  EXPECT_EQ(sized.code(), Code::kInvalidArgument);
}

TEST(LayoutOptions, CompressAsTheEnvironmentSays) {
  const auto fill = [](const char* codec, hr_layout_options& options) {
    return FillLayoutOptions(
        [codec](const char* name) -> const char* {
          return std::string_view(name) == "HEADRACE_COMPRESS" ? codec : nullptr;
        },
        sizeof options, options);
  };
  hr_layout_options options;
  ASSERT_TRUE(fill(nullptr, options).ok());
  EXPECT_STREQ(options.codec, "");
  ASSERT_TRUE(fill("int8", options).ok());
  EXPECT_STREQ(options.codec, "int8");
  const std::string longest(HR_CODEC_SIZE, 'x');
  const Status longer = fill(longest.c_str(), options);
  ASSERT_FALSE(longer.ok());
  EXPECT_NE(longer.error().text().find("HEADRACE_COMPRESS"), std::string::npos);
}

TEST(Options, KeepTheFunctionThatOlderProgramsCall) {
  hr_options options;
  std::memset(&options, '#', sizeof options);
  hr_error error;
  ASSERT_EQ((hr_options_init)(&options, &error), HR_OK);
  EXPECT_EQ(options.size, kFirstOptionsSize);
  EXPECT_EQ(options.rendezvous[0], '#');
  ASSERT_EQ(hr_options_init(&options, &error), HR_OK);
  EXPECT_EQ(options.size, sizeof options);
  EXPECT_NE(options.rendezvous[0], '#');
}

}  // namespace
}  // namespace headrace::client
