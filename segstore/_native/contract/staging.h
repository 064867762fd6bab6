/* Staged appends, and the waits for them (staging.c). */
#ifndef SEG_CONTRACT_STAGING_H
#define SEG_CONTRACT_STAGING_H

#include <stdint.h>

/* Give the batches in the first `end` bytes of a file, whatever offsets they have, those from base_offset
 * on and a leader epoch: 12 bytes a batch, outside its CRC. The next offset; -errno, or SEG_E_COLUMN at
 * what is no header of a whole batch (those before it have theirs then). */
int64_t seg_restamp(int fd, int64_t end, int64_t base_offset, int32_t leader_epoch);
/* Wait until anything was renamed into a directory that is watched, or it was stopped: 1; 0 after timeout_ms
 * or at a signal; -errno. */
int64_t seg_watch_wait(int fd, int32_t timeout_ms);
/* End the wait, also the next one. 0, -errno. */
int64_t seg_watch_stop(int fd);
/* Wait until seg_wake_sealers is called: 0; -ETIMEDOUT, or -EINTR for a signal. Publications wake nobody here.
 * `map` is that of seg_publish; one that can only be read will do, for both calls. */
int64_t seg_await_adoption(const uint8_t *map, int64_t len, int64_t timeout_ns);
/* Let all sealers return that wait now: how many did; -errno. */
int64_t seg_wake_sealers(const uint8_t *map, int64_t len);

#endif
