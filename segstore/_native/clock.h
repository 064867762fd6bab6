/* The clock, and the range of times around it that a topic allows. */
#ifndef SEG_CLOCK_H
#define SEG_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "contract/log.h"

/* Milliseconds since the epoch. */
static inline int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Seconds of CLOCK_MONOTONIC. */
static inline double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Whether the topic's settings allow a record of this time. With LogAppendTime every time is allowed. */
static inline int is_near(const seg_tail *t, int64_t timestamp, int64_t now)
{
    return now >= 0 && timestamp >= 0 &&
        (t->stamps || (timestamp - now <= t->after_ms && now - timestamp <= t->before_ms));
}

#endif
