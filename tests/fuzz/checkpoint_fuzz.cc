// Whatever lies in the files of a checkpoint, also with tags that fit, who reads it neither crashes
// nor reads beyond its memory, and takes no parts of different models for one.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/ps/decide/model_codec.h"
#include "core/ps/decide/server_protocol.h"
#include "core/ps/io/checkpoint_reader.h"
#include "fuzz/input.h"
#include "ps/decide/models.h"

namespace ciranda::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

struct Record {
  Bytes note;
  Bytes data;
};
using File = std::vector<Record>;

constexpr int kServers = 2;
constexpr int kModels = 4;

// They differ in their tables of rows alone, but for the last.
ps::Model model_of(int number) {
  ps::Model model = ps::testing::model_of({{20, 3}, {9}});
  model.tables[0].rule = {.kind = kernels::RuleKind::kAdam, .amsgrad = true};
  model.row_tables = {{.name = "words",
                       .rows = 70,
                       .columns = 3,
                       .rule = {.kind = kernels::RuleKind::kAdagrad},
                       .deviation = 1.0}};
  if (number == 1) model.row_tables[0].columns = 200;
  if (number == 2) model.row_tables[0].rows = 9'000;
  if (number == 3) model.tables[1].slots[0].shape = {40};
  return model;
}

// The changes behind a snapshot.
class Late final : public ps::Journal {
 public:
  void write(const ps::Change& change, const Data& data) override {
    Record record;
    encode(change, record.note);
    for (const auto& piece : data) {
      record.data.insert(record.data.end(), piece.begin(), piece.end());
    }
    file.push_back(std::move(record));
  }
  File file;
};

// A server of a job of one worker, which has pushed before its part was begun and after.
class Job {
 public:
  Job(int number, int server)
      : model_(model_of(number)),
        protocol_({.job_id = "job", .server = server, .servers = kServers}),
        server_(static_cast<std::uint64_t>(server)) {
    protocol_.open(1);
    tell(ps::Enter{.job_id = "job", .servers = kServers, .server = server});
    tell(ps::Declare{});
    push(1);
    Bytes note;
    protocol_.save(note);
    for (const auto& array : protocol_.arrays()) {
      part.push_back({.note = std::move(note), .data = {array.begin(), array.end()}});
      note.clear();
    }
    protocol_.keep_journal(&late);
    push(2);
    late.file.emplace_back();
  }

  File part;
  Late late;

 private:
  void push(std::uint64_t seq) {
    ps::Push push{.seq = seq, .base = seq - 1, .clock = seq};
    for (const ps::Table& table : model_.tables) push.rules.push_back(table.rule);
    push.used.assign(slot_count(model_), true);
    tell(push);
    tell(ps::PushRows{.seq = seq, .count = 1, .rule = model_.row_tables[0].rule});
  }
  void tell(const ps::Message& message) {
    const ps::ServerProtocol::Attached attached{
        .model_blob = [&](std::uint64_t) -> Result<Bytes> {
          Bytes model_blob;
          encode(model_, model_blob);
          return model_blob;
        },
        .memory = [&](std::uint64_t bytes) -> Result<std::byte*> {
          Bytes& memory = memories_.emplace_back(bytes);
          // The number of a row of this server.
          memory[0] = static_cast<std::byte>(server_);
          return memory.data();
        }};
    ps::ServerProtocol::Answers answers;
    protocol_.take(1, message, attached, 0, answers);
    for (const ps::ServerProtocol::Answer& answer : answers) CIRANDA_ASSERT(!answer.hangs_up);
  }

  const ps::Model model_;
  ps::ServerProtocol protocol_;
  const std::uint64_t server_;
  std::vector<Bytes> memories_;
};

const Job& job(int number, int server) {
  static const auto kJobs = [] {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int each = 0; each < kModels * kServers; ++each) {
      jobs.push_back(std::make_unique<Job>(each / kServers, each % kServers));
    }
    return jobs;
  }();
  return *kJobs[static_cast<std::size_t>(number * kServers + server)];
}

const std::string& folder() {
  struct Folder {
    Folder() {
      const bool in_memory = std::filesystem::is_directory("/dev/shm");
      path = std::string(in_memory ? "/dev/shm" : "/tmp") + "/ciranda-fuzz-XXXXXX";
      CIRANDA_ASSERT(::mkdtemp(path.data()) != nullptr);
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string path;
  };
  static const Folder kFolder;
  return kFolder.path;
}

void write(const std::string& name, const File& file) {
  auto writer = ps::RecordWriter::create(folder() + "/" + name);
  CIRANDA_ASSERT(writer.ok());
  for (const Record& record : file) {
    CIRANDA_ASSERT(writer.value().append(record.note, {record.data}).ok());
  }
}

// One record of one file otherwise: bits flipped, cut off, or gone.
void change(std::vector<File>& files, Input& input) {
  File& file = files[input.u8() % files.size()];
  if (file.empty()) return;
  const std::size_t number = input.u8() % file.size();
  Record& record = file[number];
  const std::uint8_t how = input.u8();
  Bytes& bytes = how % 2 == 0 ? record.note : record.data;
  switch (how / 2 % 4) {
    case 0:
      file.erase(file.begin() + static_cast<std::ptrdiff_t>(number));
      break;
    case 1:
      bytes.resize(input.u16() % (bytes.size() + 2));
      break;
    default:
      Input(input.bytes(3 * (1 + input.u8() % 8u))).patch(bytes);
  }
}

}  // namespace
}  // namespace ciranda::fuzz

// The model of each server's part, for how many servers it is read, and changes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ciranda::fuzz;
  namespace ps = ciranda::ps;
  Input input(data, size);
  const int models[] = {input.u8() % kModels, input.u8() % kModels};
  const int readers = 1 + input.u8() % 3;
  std::vector<std::byte> manifest;
  encode(ps::Manifest{.checkpoint = 1, .servers = kServers}, manifest);
  std::vector<File> files = {{{.note = manifest, .data = {}}}};
  for (int server = 0; server < kServers; ++server) {
    files.push_back(job(models[server], server).part);
    files.push_back(job(models[server], server).late.file);
  }
  const bool is_changed = !input.empty();
  while (!input.empty()) change(files, input);
  write(ps::kManifestFile, files[0]);
  for (int server = 0; server < kServers; ++server) {
    const auto first = static_cast<std::size_t>(1 + 2 * server);
    write(ps::part_file(ps::kPartFile, server, kServers), files[first]);
    write(ps::part_file(ps::kLateFile, server, kServers), files[first + 1]);
  }
  const auto reader = ps::CheckpointReader::open(folder());
  if (!reader) return 0;
  for (int server = 0; server < readers; ++server) {
    const auto share = reader.value().share(server, readers, 1);
    CIRANDA_ASSERT(is_changed || share.ok() == (models[0] == models[1]));
  }
  return 0;
}
