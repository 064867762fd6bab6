/* The steps of an append to an active segment (active.c), for the files of a log's tail (append.c). */
#ifndef SEG_ACTIVE_H
#define SEG_ACTIVE_H

#include "contract/active.h"
#include "contract/batch.h"

#define SEG_HIDDEN __attribute__((visibility("hidden")))

/* Whether a batch of this time needs no roll before it. */
SEG_HIDDEN int seg_active_is_young(const seg_active *a, int64_t timestamp);

/* Whether n batches with so many offsets fit the segment and its indexes. */
SEG_HIDDEN int seg_active_has_room(const seg_active *a, int64_t size, int64_t offsets, int64_t n);

/* Write bytes after the end, by one call: their number, or -errno. The end stays. */
SEG_HIDDEN int64_t seg_active_write(const seg_active *a, int32_t fd, seg_writer write, const uint8_t *const *bufs,
                                    const int64_t *lens, int64_t n);

/* Index written batches; there is room for their entries. The end stays: 0, or -errno. */
SEG_HIDDEN int64_t seg_active_note(seg_active *a, const seg_batch *batches, int64_t n);

/* Move the end after batches that were written and indexed. */
SEG_HIDDEN void seg_active_move(seg_active *a, int64_t position, int64_t next_offset);

#endif
