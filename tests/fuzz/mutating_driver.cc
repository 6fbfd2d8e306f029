// Runs a fuzz target without libFuzzer: every file of a corpus, then seeded mutations of them. It
// follows no coverage, so it finds less; it lets every compiler run the targets on every test run.
//
//   TARGET CORPUS_FOLDER MUTATIONS SEED
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/below.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size);

namespace {

using headrace::plan::Random;

void RunInput(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

// One change at a random place: a byte, a cut, a piece copied from elsewhere.
void Mutate(std::string& text, const std::string& other, Random& random) {
  const std::size_t at = Below(random, text.size() + 1);
  switch (Below(random, 6)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(Below(random, 256));
      break;
    case 1:
      text.resize(at);
      break;
    case 2:
      text.insert(at, 1, "0123456789-.eE{}[]\",: \n"[Below(random, 23)]);
      break;
    case 3:
      text.erase(at, Below(random, 8));
      break;
    case 4:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << Below(random, 8)));
      break;
    default: {
      const std::size_t from = Below(random, other.size() + 1);
      text.insert(at, other.substr(from, Below(random, 64)));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER MUTATIONS SEED\n", argv[0]);
    return 2;
  }
  std::vector<std::string> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    corpus.push_back(text.str());
    RunInput(corpus.back());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no files\n", argv[1]);
    return 1;
  }
  const long mutations = std::atol(argv[2]);
  // First, so that it stands above whatever an input does.
  std::printf("%zu files, %ld mutations, seed %s\n", corpus.size(), mutations, argv[3]);
  std::fflush(stdout);
  Random random(std::strtoull(argv[3], nullptr, 10));
  for (long run = 0; run < mutations; ++run) {
    std::string text = corpus[Below(random, corpus.size())];
    const std::string& other = corpus[Below(random, corpus.size())];
    for (std::uint64_t change = 0; change <= Below(random, 4); ++change) {
      Mutate(text, other, random);
    }
    RunInput(text);
  }
  return 0;
}
