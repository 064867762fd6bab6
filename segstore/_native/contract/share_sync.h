/* Group commit of a shared log (share_sync.c). */
#ifndef SEG_CONTRACT_SHARE_SYNC_H
#define SEG_CONTRACT_SHARE_SYNC_H

#include "log.h"
#include "shared.h"

/* Return when all below offset `upto` of the log is durable: 0. `fd` is the active segment's log of s->generation, and
 * `sync` syncs it, NULL: seg_fdatasync. SEG_SLOW: the host must sync, or a signal's handler has kept `sync` from it.
 * -errno of a sync that failed: nobody syncs the log any more. -EINTR for a signal, or if one may have come: the caller
 * has its handler run, and calls again; nothing is left then. */
int64_t seg_share_flush(const seg_share *s, int32_t fd, seg_syncer sync, int64_t upto);
/* Whether a log that ends at offset `end` is to be flushed by flush.messages, 0: never. */
int64_t seg_share_is_due(const seg_share *s, int64_t end, int64_t messages);
/* By the host: let no member sync the log until seg_share_sync_end: 0; 1: one has died while it synced, and what is not
 * durable is to be written again first; -EINTR as above. */
int64_t seg_share_sync_begin(const seg_share *s);
/* By the host, before it syncs: up to where the log is durable behind that. */
void seg_share_sync_note(const seg_share *s, int64_t upto);
/* By the host: let them sync, if it keeps them from it. All below `synced` is durable, -1: nothing was synced; `failed`: errno of a sync that
 * failed, 0: none. */
void seg_share_sync_end(const seg_share *s, int64_t synced, int32_t failed);
/* By the host: let members sync a log of this generation by its active segment alone, if since seg_share_sync_more said
 * `changes` nothing else has come that is to be synced: 1; 0. */
int64_t seg_share_sync_less(const seg_share *s, int64_t changes, int64_t generation);
/* By the host, before readers may see it: more than the active segment's log is to be synced. `changes` counts that. */
void seg_share_sync_more(const seg_share *s, int64_t changes);
/* Write the batches of a segment again in place, with the same bytes: those from `position` on, -1: from the one that
 * holds `offset`, to `end`. 0; -errno, and -EIO also for a batch whose CRC does not hold. */
int64_t seg_write_again(int32_t fd, int64_t offset, int64_t position, int64_t end);

#endif
