/* The storm at the steps of a shared log (step.h): by chance it pauses, kills or stops the process there, or tears a
 * write in two. Built only with SEGSTORE_STORM=1 (build.py), for tests/processes/shared_storm.
 *
 * The environment has the probability of each (SEGSTORE_STORM_PAUSE, _DIE, _STOP, _TEAR: 0 to 1), the longest pause
 * (SEGSTORE_STORM_US), the steps at which the process may die (_AT: a bit for each), the seed (_SEED), the planted bug
 * (_BUG), and a file of counts (_COUNTS): how often each step was met, died at, and stopped at. It is read at the first
 * step of a process, which must not fork afterwards.
 *
 * Thread contract: any thread.
 */
#define _GNU_SOURCE
#include "step.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "contract/file.h"

enum { MET, DIED, STOPPED, KINDS };

static struct {
    double pause, die, stop, tear;
    uint64_t seed, at;
    int us, bug;
    int64_t *counts;
} storm;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t threads;
static __thread uint64_t state;

static double chance(const char *name)
{
    const char *value = getenv(name);
    return value ? strtod(value, NULL) : 0;
}

static int bug_of(const char *name)
{
    static const char *const names[] = {"none", "hasty", "end-first", "words", "no-cut", "no-swap"};
    for (int i = 0; name && i < (int)(sizeof names / sizeof *names); i++)
        if (!strcmp(name, names[i]))
            return i;
    return SEG_BUG_NONE;
}

static void begin(void)
{
    const char *path = getenv("SEGSTORE_STORM_COUNTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    size_t size = SEG_STEPS * KINDS * sizeof(int64_t);
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    storm.counts = found == MAP_FAILED ? NULL : found;
    storm.pause = chance("SEGSTORE_STORM_PAUSE");
    storm.die = chance("SEGSTORE_STORM_DIE");
    storm.stop = chance("SEGSTORE_STORM_STOP");
    storm.tear = chance("SEGSTORE_STORM_TEAR");
    storm.us = (int)chance("SEGSTORE_STORM_US");
    storm.seed = (uint64_t)chance("SEGSTORE_STORM_SEED");
    storm.at = getenv("SEGSTORE_STORM_AT") ? strtoull(getenv("SEGSTORE_STORM_AT"), NULL, 10) : ~(uint64_t)0;
    storm.bug = bug_of(getenv("SEGSTORE_STORM_BUG"));
}

/* splitmix64 (S. Vigna, public domain), from 0 to 1. */
static double draw(void)
{
    if (!state)
        state = storm.seed * 1000003 + __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED) * 7919;
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static void count(int step, int kind)
{
    if (storm.counts)
        __atomic_fetch_add(storm.counts + step * KINDS + kind, 1, __ATOMIC_RELAXED);
}

void seg_step(int step)
{
    pthread_once(&once, begin);
    count(step, MET);
    double drawn = draw();
    if (drawn < storm.die) {
        if (!(storm.at >> step & 1))
            return;
        count(step, DIED);
        kill(getpid(), SIGKILL);
        pause();
    } else if ((drawn -= storm.die) < storm.stop) {
        count(step, STOPPED);
        kill(getpid(), SIGSTOP);
    } else if (drawn - storm.stop < storm.pause) {
        usleep((useconds_t)(draw() * storm.us));
    }
}

void seg_step_tear(int32_t fd, const uint8_t *const *bufs, const int64_t *lens, int64_t n, int64_t position)
{
    pthread_once(&once, begin);
    if (draw() >= storm.tear)
        return;
    int64_t whole = (int64_t)(draw() * (double)n);
    for (int64_t i = 0; i <= whole && i < n; position += lens[i++])
        seg_pwrite(fd, bufs[i], i < whole ? lens[i] : (int64_t)(draw() * (double)lens[i]), position);
    seg_step(SEG_AT_HALF_WRITE);
}

int seg_step_bug(void)
{
    pthread_once(&once, begin);
    return storm.bug;
}
