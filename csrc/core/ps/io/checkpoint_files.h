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

// Writes one server's files of a job's checkpoints. All servers of the job write to one folder.
// Checkpoint C is its subfolder `checkpoint-C`, with two files of each server I of N: `part-I-of-N`
// is a snapshot; `late-I-of-N` has the later changes that belong to the checkpoint, and ends with
// an empty record. When all these files exist, server 0 writes the `manifest`, which makes the
// checkpoint whole. Server 0 then removes the job's older checkpoints, except for the previous
// whole one. Server 0 holds a lock on the file `owner`, which has the job and the number of its
// first checkpoint.
//
// A failure leaves the previous checkpoint, and is printed on stderr unless it repeats the last
// one. The next attempt follows after a pause, which grows with each failure.
//
// Owned by the Server. Not thread-safe. Blocks only for the disk.
class CheckpointFiles final : public CheckpointKeeper {
 public:
  // The origin of the server's state. Checkpoints of the same origin count as this job's own.
  struct Origin {
    std::string job = {};       // whose state the server found: this job or a past one; empty: none
    std::string restored = {};  // folder of the checkpoint that it began with; empty: none
  };
  // Creates the folder if it is missing, and becomes the keeper of `protocol`, which must outlive
  // this object. kInvalidArgument if server 0 of another job uses the folder, kSystem if it is not
  // writable.
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
  void withdraw(Checkpoint checkpoint) override;

  // Checks on the checkpoint in the making; server 0 completes it once all its files exist.
  void tend(std::uint64_t now_ns);
  // Returns when to call tend() next (monotonic_ns), or kNever.
  std::uint64_t next_deadline_ns() const;
  // Returns true if no checkpoint is in the making.
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
  Fd owner_;                  // server 0: the file `owner`, locked
  Checkpoint first_own_ = 0;  // checkpoints with lower numbers are another job's
  std::string said_;          // the last failure printed; empty: none since the last success
  std::uint64_t pause_ns_ = 0;
  std::uint64_t again_ns_ = 0;        // no checkpoint is announced before then
  Checkpoint latest_ = 0;             // found in the folder, announced or begun
  std::optional<RecordWriter> late_;  // the file `late`, until close()
  SnapshotChild child_;
  Checkpoint awaited_ = 0;          // server 0: the one in the making; 0: none
  std::uint64_t deadline_ns_ = 0;   // for its files; 0: this server's are not finished
  std::vector<std::byte> encoded_;  // scratch
};

// Names of a checkpoint's folder and files.
std::string checkpoint_folder(const std::string& folder, Checkpoint checkpoint);
std::string part_file(const char* what, int server, int servers);
inline constexpr const char* kPartFile = "part";
inline constexpr const char* kLateFile = "late";
inline constexpr const char* kManifestFile = "manifest";
inline constexpr const char* kOwnerFile = "owner";
// Returns the numbers of the folder's checkpoints, whole or not, in ascending order.
std::vector<Checkpoint> list_checkpoints(const std::string& folder);
// Returns true if the manifest and all servers' files exist. A checkpoint with a damaged manifest
// counts as whole; CheckpointReader reports the damage.
bool is_whole(const std::string& checkpoint_folder);
// Returns the path of the first missing file, or an empty string.
std::string missing_file(const std::string& checkpoint_folder, int servers);

struct Manifest {
  Checkpoint checkpoint = 0;
  int servers = 1;
};
void encode(const Manifest& manifest, std::vector<std::byte>& out);
Result<Manifest> decode_manifest(std::span<const std::byte> bytes);

}  // namespace ciranda::ps
