/* Staged appends, and the waits for them (staging.c). */
#ifndef SEG_CONTRACT_STAGING_H
#define SEG_CONTRACT_STAGING_H

#include <stdint.h>

/* Set the offsets of the batches in the first `end` bytes of a file, from base_offset on, and a leader epoch: 12 bytes
 * a batch, outside its CRC. Returns the next offset; -errno, or SEG_E_COLUMN at bytes that are no whole batch (batches
 * before them are changed then). */
int64_t seg_restamp(int fd, int64_t end, int64_t base_offset, int32_t leader_epoch);
/* Wait until a file was renamed into a watched directory, or the watch was stopped: 1; 0 after timeout_ms or at a
 * signal; -errno. */
int64_t seg_watch_wait(int fd, int32_t timeout_ms);
/* End the wait, also the next one. 0, -errno. */
int64_t seg_watch_stop(int fd);
/* Wait until seg_wake_sealers is called: 0; -ETIMEDOUT, or -EINTR for a signal. Publications do not end this wait.
 * `map` is that of seg_publish; a read-only mapping is enough for both calls. */
int64_t seg_await_adoption(const uint8_t *map, int64_t len, int64_t timeout_ns);
/* Wake all waiting sealers. Returns their number; -errno. */
int64_t seg_wake_sealers(const uint8_t *map, int64_t len);

#endif
