#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/ps/decide/checkpoint_barrier.h"
#include "core/ps/decide/server_protocol.h"
#include "core/ps/io/record_file.h"
#include "core/ps/io/snapshot.h"

namespace ciranda::ps {

// The checkpoints of a job, in a folder that all its servers write to. Each has a folder of its
// own, `checkpoint-C`, with two files of each server: `part-I-of-N`, a snapshot, and
// `late-I-of-N`, changes that came to it later and belong to it, with an empty record behind the
// last. Server 0 finds all of them there and writes the `manifest`: only then the checkpoint is
// one, and those of this job before the one before it are removed. Server 0 has locked the file
// `owner`, which says whose checkpoints those from which number on are.
//
// What fails is said on stderr, once until it is something else, and leaves the checkpoint before;
// it is tried again after ever longer pauses. Not thread-safe. Blocks for the disk alone.
class CheckpointFiles final : public CheckpointKeeper {
 public:
  // Whose checkpoints this job goes on with.
  struct Origin {
    std::string job = {};       // whose server it was: this one, or one that is over; empty: none
    std::string restored = {};  // its folder; empty: none
  };
  // Makes the folder where it is missing. `protocol` must outlive this. kInvalidArgument: the
  // server 0 of another job is at work there.
  static Result<std::unique_ptr<CheckpointFiles>> open(std::string folder, ServerProtocol& protocol,
                                                       const ServerProtocolOptions& options,
                                                       const Origin& origin);
  ~CheckpointFiles() override;
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;

  std::optional<Checkpoint> announce() override;
  void begin(Checkpoint checkpoint) override;
  void add(const Change& change, const Journal::Data& data) override;
  void close() override;
  void withdraw() override;

  // Looks after what is on its way.
  void tend(std::uint64_t now_ns);
  std::uint64_t next_deadline_ns() const;
  // Nothing is on its way.
  bool done() const { return !late_ && !child_.running() && awaited_ == 0; }

 private:
  CheckpointFiles(std::string folder, ServerProtocol& protocol,
                  const ServerProtocolOptions& options)
      : folder_(std::move(folder)),
        protocol_(protocol),
        server_(options.server),
        servers_(options.servers),
        job_(options.job_id) {}
  Status claim(const Origin& origin);
  Checkpoint first_own(const std::string& owner, const Origin& origin) const;
  void complain(Checkpoint checkpoint, const std::string& why);
  void pause(std::uint64_t now_ns);
  void succeed();
  void give_up(const std::string& why);
  Status write_manifest() const;
  void remove_older() const;
  FileNames names(const char* what, Checkpoint checkpoint) const;

  const std::string folder_;
  ServerProtocol& protocol_;
  const int server_;
  const int servers_;
  const std::string job_;
  Fd owner_;                  // server 0: the file, locked
  Checkpoint first_own_ = 0;  // those before it are another job's
  std::string said_;          // why the latest has failed; empty: it has not
  std::uint64_t pause_ns_ = 0;
  std::uint64_t again_ns_ = 0;        // until then none is begun
  Checkpoint latest_ = 0;             // that is announced or begun
  std::optional<RecordWriter> late_;  // while it is open
  SnapshotChild child_;
  Checkpoint awaited_ = 0;          // server 0: whose parts are on their way; 0: none
  std::uint64_t deadline_ns_ = 0;   // of that, once the own part is there
  std::vector<std::byte> encoded_;  // scratch
};

// The names of a checkpoint's files.
std::string checkpoint_folder(const std::string& folder, Checkpoint checkpoint);
std::string part_file(const char* what, int server, int servers);
inline constexpr const char* kPartFile = "part";
inline constexpr const char* kLateFile = "late";
inline constexpr const char* kManifestFile = "manifest";
inline constexpr const char* kOwnerFile = "owner";
// Numbers of those that are in the folder, in their order; whole or not.
std::vector<Checkpoint> list_checkpoints(const std::string& folder);
// Its manifest is there, and the files that this speaks of; one with a damaged manifest is taken
// for whole, and named by who reads it.
bool is_whole(const std::string& checkpoint_folder);
// The first file that it misses; empty: none.
std::string missing_file(const std::string& checkpoint_folder, int servers);

struct Manifest {
  Checkpoint checkpoint = 0;
  int servers = 1;
};
void encode(const Manifest& manifest, std::vector<std::byte>& out);
Result<Manifest> decode_manifest(std::span<const std::byte> bytes);

}  // namespace ciranda::ps
