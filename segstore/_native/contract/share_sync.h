/* Group commit of a shared log (share_sync.c). */
#ifndef SEG_CONTRACT_SHARE_SYNC_H
#define SEG_CONTRACT_SHARE_SYNC_H

#include "log.h"
#include "shared.h"

/* Make all below offset `upto` of the log durable: 0. `fd` is the active segment's log of s->generation, and `sync`
 * syncs it (NULL: seg_fdatasync). SEG_SLOW: the host must sync, or a signal's handler has prevented `sync`. -errno of a
 * failed sync: no process syncs the log any more. -EINTR for a signal, or if one may have come: the caller has its
 * handler run, and calls again; no lock is held then. */
int64_t seg_share_flush(const seg_share *s, int32_t fd, seg_syncer sync, int64_t upto);
/* Whether flush.messages asks for a flush of a log that ends at offset `end`; 0 messages: never. */
int64_t seg_share_is_due(const seg_share *s, int64_t end, int64_t messages);
/* By the host: let no member sync the log until seg_share_sync_end: 0; 1: one has died during a sync, and bytes above
 * the recovery point must be written again first; -EINTR as above. */
int64_t seg_share_sync_begin(const seg_share *s);
/* By the host, before it syncs: note the recovery point `upto` that the sync will give. */
void seg_share_sync_note(const seg_share *s, int64_t upto);
/* By the host: let members sync again, if they may not. All below `synced` is durable, -1: nothing was synced;
 * `failed`: errno of a failed sync, 0: none. */
void seg_share_sync_end(const seg_share *s, int64_t synced, int32_t failed);
/* By the host: let members sync a log of this generation by its active segment alone: 1; 0 if a later
 * seg_share_sync_more than `changes` has come. */
int64_t seg_share_sync_less(const seg_share *s, int64_t changes, int64_t generation);
/* By the host, before readers may see it: note that files other than the active segment's log need a sync. `changes` is
 * the number of this change. */
void seg_share_sync_more(const seg_share *s, int64_t changes);
/* Write batches of a segment again in place, with the same bytes: from byte `position`, or, if it is -1, from the batch
 * that holds `offset`, to `end`. 0; -errno, and -EIO also for a batch with a wrong CRC. */
int64_t seg_write_again(int32_t fd, int64_t offset, int64_t position, int64_t end);

#endif
