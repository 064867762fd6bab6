/* Steps of a shared log's appends, repairs, takeovers and fences, at which a storm pauses, kills or stops the
 * process, and bugs that it plants (storm.c, tests/processes/shared_storm). Only a build with SEGSTORE_STORM=1 has
 * them: in other builds these macros do nothing. */
#ifndef SEG_STEP_H
#define SEG_STEP_H

#ifdef SEGSTORE_STORM

#include <stdint.h>

/* The names are those of tests/processes/shared_storm/steps.py, in the same order. */
enum seg_steps {
    SEG_AT_LOCKED,           /* an append has the log's lock */
    SEG_AT_FROM_DEAD,        /* an append has the log's lock, and its last owner was dead */
    SEG_AT_BEFORE_WRITE,
    SEG_AT_HALF_WRITE,
    SEG_AT_WRITTEN,
    SEG_AT_INDEXED,
    SEG_AT_FILLED,
    SEG_AT_PUBLISHED,
    SEG_AT_LEAVING,
    SEG_AT_UNLOCKED,
    SEG_AT_COUNTED,
    SEG_AT_REPAIR,
    SEG_AT_CUT,
    SEG_AT_CLOSING,          /* the host has the lock, and the log is open */
    SEG_AT_CLOSED,
    SEG_AT_SHOWING,
    SEG_AT_SHOWN,
    SEG_AT_OPENING,
    SEG_AT_OPENED,
    SEG_AT_TAKING_OVER,
    SEG_AT_TAKEN_OVER,
    SEG_AT_NOTED,            /* a fence */
    SEG_AT_TAKEN,
    SEG_AT_SEALING,
    SEG_AT_SEALED,
    SEG_AT_FENCED,
    SEG_AT_TOGETHER,         /* several logs are prepared to be shown at one moment */
    SEG_AT_TOGETHER_BEGUN,
    SEG_AT_TOGETHER_ONE,
    SEG_AT_TOGETHER_DONE,
    SEG_AT_SYNCING,
    SEG_AT_SYNCED,
    SEG_AT_ASKED,
    SEG_AT_ANSWERED,
    SEG_STEPS
};

enum seg_bugs { SEG_BUG_NONE, SEG_BUG_HASTY, SEG_BUG_END_FIRST, SEG_BUG_WORDS, SEG_BUG_NO_CUT, SEG_BUG_NO_SWAP };

void seg_step(int step);
/* Write only a part of the bytes, by chance. */
void seg_step_tear(int32_t fd, const uint8_t *const *bufs, const int64_t *lens, int64_t n, int64_t position);
/* The planted bug ( */
int seg_step_bug(void);

#define SEG_STEP(step) seg_step(SEG_AT_##step)
#define SEG_TEAR(fd, bufs, lens, n, position) seg_step_tear(fd, bufs, lens, n, position)
#define SEG_HAS_BUG(bug) (seg_step_bug() == SEG_BUG_##bug)

#else

#define SEG_STEP(step) ((void)0)
#define SEG_TEAR(fd, bufs, lens, n, position) ((void)0)
#define SEG_HAS_BUG(bug) 0

#endif
#endif
