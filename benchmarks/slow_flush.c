/* A disk whose flushes take longer: loaded before the C library (LD_PRELOAD), each flush first waits FLUSH_DELAY_US.
 *
 * Programs in Python and in Java call these functions of the C library, so both kinds of node get the same disk.  Flushes that
 * are under way at the same time wait at the same time, as they do at a disk that takes several.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static void wait_a_little(void) {
    const char *text = getenv("FLUSH_DELAY_US");
    long microseconds = text ? atol(text) : 0;
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    if (microseconds > 0) nanosleep(&time, NULL);
}

#define SLOW(name)                                                   \
    int name(int descriptor) {                                       \
        static int (*real)(int);                                     \
        if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, #name);     \
        wait_a_little();                                             \
        return real(descriptor);                                     \
    }

SLOW(fsync)
SLOW(fdatasync)
SLOW(syncfs)
