#include "service/config/instance.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/expect_text.h"

namespace headrace::service {
namespace {

class InstanceTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "headrace-instance-XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/socket";
    board_ = directory_ + "/board";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // A bound socket file; listens as long as the descriptor lives when `listening`.
  UniqueFd Bind(bool listening) const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    if (listening) {
      EXPECT_EQ(::listen(fd.get(), 1), 0);
    }
    return fd;
  }
  Error Refused() const {
    const Result<Instance> second = Instance::Claim(path_, board_, "headraced 0.1.0");
    EXPECT_FALSE(second.ok());
    return second.ok() ? Error(Code::kOk, "") : second.error();
  }
  static bool Has(const Error& error, const std::string& part) {
    return error.text().find(part) != std::string::npos;
  }

  std::string directory_;
  std::string path_;
  std::string board_;
};

TEST_F(InstanceTest, TellsTheSecondWhoHoldsTheSocket) {
  const Result<Instance> first = Instance::Claim(path_, board_, "headraced 0.1.0");
  ASSERT_TRUE(first.ok()) << first.error().text();
  EXPECT_EQ(first->notice(), "");
  const Error error = Refused();
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_TRUE(Has(error, "pid " + std::to_string(::getpid()) + " (headraced 0.1.0) since 20"))
      << error.text();
  EXPECT_TRUE(Has(error, path_));
}

TEST_F(InstanceTest, LetsNobodyTakeTheBoardOfAnotherSocketsService) {
  const Result<Instance> first = Instance::Claim(path_, board_, "headraced 0.1.0");
  ASSERT_TRUE(first.ok());
  const std::string other = directory_ + "/other";
  const Result<Instance> second = Instance::Claim(other, board_, "headraced 0.1.0");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::kAlreadyExists);
  EXPECT_TRUE(Has(second.error(), "the board " + board_ + " is held by pid "))
      << second.error().text();
  // What it had taken by then is free again.
  EXPECT_TRUE(Instance::Claim(other, directory_ + "/board2", "headraced").ok());
}

TEST_F(InstanceTest, LeavesNothingBehind) {
  {
    const Result<Instance> instance = Instance::Claim(path_, board_, "headraced");
    ASSERT_TRUE(instance.ok());
    const UniqueFd socket = Bind(true);
    EXPECT_TRUE(std::filesystem::exists(path_));
    EXPECT_TRUE(std::filesystem::exists(path_ + ".lock"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  EXPECT_TRUE(Instance::Claim(path_, board_, "headraced").ok());
}

TEST_F(InstanceTest, RemovesItsFilesOnceWhenItWasMoved) {
  std::optional<Instance> kept;
  {
    Result<Instance> instance = Instance::Claim(path_, board_, "headraced");
    ASSERT_TRUE(instance.ok());
    kept.emplace(std::move(instance).value());
  }
  EXPECT_TRUE(std::filesystem::exists(path_ + ".lock"));
  EXPECT_EQ(Refused().code(), Code::kAlreadyExists);
  kept.reset();
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(InstanceTest, TakesOverWhatAKilledServiceLeft) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    Result<Instance> instance = Instance::Claim(path_, board_, "headraced");
    const UniqueFd socket = Bind(true);
    // Ends like a kill: no destructor runs.
    ::_exit(instance.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(std::filesystem::exists(path_));
  const Result<Instance> next = Instance::Claim(path_, board_, "headraced");
  ASSERT_TRUE(next.ok()) << next.error().text();
  EXPECT_VARYING_TEXT(next->notice(), path_);
  EXPECT_FALSE(std::filesystem::exists(path_)) << "free for bind";
}

TEST_F(InstanceTest, DoesNotTakeTheSocketOfAnotherProgram) {
  const UniqueFd other = Bind(true);
  const Error error = Refused();
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_TRUE(Has(error, "pid " + std::to_string(::getpid()) + " listens")) << error.text();
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".lock"));
}

TEST_F(InstanceTest, DoesNotTouchAFileThatIsNoSocket) {
  std::ofstream(path_) << "precious";
  const Error error = Refused();
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_TRUE(Has(error, "is not a socket")) << error.text();
  EXPECT_EQ(std::filesystem::file_size(path_), 8U);
}

TEST_F(InstanceTest, MakesTheLastDirectoryOnly) {
  path_ = directory_ + "/run/socket";
  {
    const Result<Instance> instance = Instance::Claim(path_, board_, "headraced");
    ASSERT_TRUE(instance.ok()) << instance.error().text();
    struct stat state {};
    ASSERT_EQ(::stat((directory_ + "/run").c_str(), &state), 0);
    EXPECT_EQ(state.st_mode & 07777, 0755U);
  }
  path_ = directory_ + "/no/such/socket";
  const Error error = Refused();
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_TRUE(Has(error, "make " + directory_ + "/no/such in " + directory_ + "/no: No such file"))
      << error.text();
}

TEST_F(InstanceTest, RefusesAPathThatNoSocketAddressHolds) {
  path_ = directory_ + "/" + std::string(108 - directory_.size() - 1, 'x');
  const Error error = Refused();
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TRUE(Has(error, "108 bytes, at most 107")) << error.text();
  path_.pop_back();
  EXPECT_TRUE(Instance::Claim(path_, board_, "headraced").ok());
}

TEST_F(InstanceTest, SaysSoWhenTheHolderIsOnlyStarting) {
  const UniqueFd lock(::open((path_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_TRUE(Has(Refused(), "a service that is just starting"));
}

// As headracectl does, in any moment of a start: for as long as a busy machine takes.
TEST_F(InstanceTest, WaitsForWhoOnlyAsksForTheLocksState) {
  const UniqueFd lock(::open((board_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(lock.get(), LOCK_SH), 0);
  std::thread look([&lock] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::flock(lock.get(), LOCK_UN);
  });
  const Result<Instance> instance = Instance::Claim(path_, board_, "headraced");
  look.join();
  EXPECT_TRUE(instance.ok()) << instance.error().text();
}

// Who may read a lock file may lock it, and a service that was killed leaves it behind.
TEST_F(InstanceTest, LeavesItsLocksToNoOtherUsers) {
  const UniqueFd old(::open((board_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  const Result<Instance> instance = Instance::Claim(path_, board_, "headraced");
  ASSERT_TRUE(instance.ok()) << instance.error().text();
  for (const std::string& path : {path_ + ".lock", board_ + ".lock"}) {
    struct stat found {};
    ASSERT_EQ(::stat(path.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & S_IRWXO, 0U) << path;
  }
}

}  // namespace
}  // namespace headrace::service
