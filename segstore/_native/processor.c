/* On which processor a thread of Python runs, and how it leaves that. Thread contract: any thread; each speaks of
 * itself.
 */
#define _GNU_SOURCE
#include "bytes.h"
#include "contract/threads.h"
#include "system.h"

int32_t seg_processor(void)
{
    return processor();
}

int32_t seg_leave_processor(int32_t number)
{
    return leave_processor(number);
}
