/* An engine that its guest has taken over. It is started as QEMU is, with QEMU's command line, by the code that starts
 * QEMU; the "disk" that it is given first (set=1) says what to try, a line each: LABEL VERB [ARGUMENT]. It prints a line
 * each: LABEL and what came of it, "ok" (with a number, where one is asked for) or the name of the error. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char result[64];

static const char *say(long outcome) {
    if (outcome < 0)
        snprintf(result, sizeof result, "%s", strerrorname_np(errno) ? strerrorname_np(errno) : "?");
    else
        snprintf(result, sizeof result, "ok");
    return result;
}

static const char *number(long n) {
    snprintf(result, sizeof result, "ok %ld", n);
    return result;
}

static const char *opened(const char *path, int flags) {
    int fd = open(path, flags, 0600);
    say(fd);
    if (fd >= 0) close(fd);
    return result;
}

static const char *dial(const char *name, int abstract) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path + abstract, sizeof to.sun_path - abstract, "%s", name);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) return say(-1);
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name);
    say(connect(fd, (struct sockaddr *)&to, length));
    close(fd);
    return result;
}

static const char *dial_tcp(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return say(-1);
    say(connect(fd, (struct sockaddr *)&to, sizeof to));
    close(fd);
    return result;
}

/* Opens for writing again what was inherited, where it has this inode number. */
static const char *rewrite(unsigned long inode) {
    for (int fd = 3; fd < 256; fd++) {
        struct stat meta;
        if (fstat(fd, &meta) || meta.st_ino != inode) continue;
        if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) return number(fd);
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        return opened(path, O_RDWR);
    }
    return "absent";
}

/* Inherited descriptors from which a path could lead out. */
static long directories(void) {
    long found = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct stat meta;
        if (!fstat(fd, &meta) && S_ISDIR(meta.st_mode)) found++;
    }
    return found;
}

static long processes(void) {
    DIR *dir = opendir("/proc");
    long found = 0;
    if (!dir) return -1;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') found++;
    closedir(dir);
    return found;
}

static const char *peek(int pid) {
    char here[16];
    extern char **environ;
    struct iovec to = {here, sizeof here}, from = {(void *)&environ, sizeof here};
    /* Both are the same program, or the address means nothing there: EFAULT is as good as being allowed. */
    long outcome = process_vm_readv(pid, &to, 1, &from, 1, 0);
    return say(outcome < 0 && errno == EFAULT ? 0 : outcome);
}

static const char *raise_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct all[2];
    if (syscall(SYS_capget, &header, all)) return say(-1);
    all[0].effective |= 1u << CAP_SYS_ADMIN;
    all[0].permitted |= 1u << CAP_SYS_ADMIN;
    return say(syscall(SYS_capset, &header, all));
}

static const char *cloned(int flags) {
    long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    if (pid > 0) waitpid(pid, NULL, 0);
    return say(pid);
}

/* In a child, which the kernel may end. */
static const char *use_memory(long megabytes) {
    pid_t pid = fork();
    if (pid == 0) {
        size_t bytes = (size_t)megabytes << 20;
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) _exit(1);
        for (size_t at = 0; at < bytes; at += 4096) memory[at] = 1;
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) snprintf(result, sizeof result, "signal %d", WTERMSIG(status));
    else snprintf(result, sizeof result, "%s", WEXITSTATUS(status) ? "ENOMEM" : "ok");
    return result;
}

static const char *multiply(long most) {
    static pid_t children[4096];
    long made = 0;
    int reason = 0;
    while (made < most && made < 4096) {
        pid_t pid = fork();
        if (pid == 0) { pause(); _exit(0); }
        if (pid < 0) { reason = errno; break; }
        children[made++] = pid;
    }
    for (long i = 0; i < made; i++) kill(children[i], SIGKILL);
    for (long i = 0; i < made; i++) waitpid(children[i], NULL, 0);
    if (made == most) return number(made);
    errno = reason;
    return say(-1);
}

/* Roots within roots: the way out of a chroot for whoever may call it. */
static const char *leave_root(const char *path) {
    if (chroot(path)) return say(-1);
    for (int i = 0; i < 64; i++) if (chdir("..")) break;
    return say(chroot("."));
}

/* In version 1 an engine is put into its cgroups while it starts. */
static const char *wait_confined(const char *name) {
    for (int i = 0; i < 1000; i++) {
        char text[4096] = "";
        int fd = open("/proc/self/cgroup", O_RDONLY);
        long length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        if (length < 0) return say(-1);
        int inside = 0;
        for (char *at = text; (at = strstr(at, name)); at++) inside++;
        if (inside) { usleep(20000); return "ok"; }
        usleep(10000);
    }
    return "late";
}

static const char *attempt(const char *verb, const char *argument) {
    long n = strtol(argument, NULL, 10);
    if (!strcmp(verb, "read")) return opened(argument, O_RDONLY);
    if (!strcmp(verb, "write")) return opened(argument, O_RDWR);
    if (!strcmp(verb, "create")) return opened(argument, O_RDWR | O_CREAT);
    if (!strcmp(verb, "rewrite")) return rewrite(strtoul(argument, NULL, 10));
    if (!strcmp(verb, "unix")) return dial(argument, 0);
    if (!strcmp(verb, "abstract")) return dial(argument, 1);
    if (!strcmp(verb, "tcp")) return dial_tcp(n);
    if (!strcmp(verb, "kill")) return say(kill(n, 0));
    if (!strcmp(verb, "trace")) return say(ptrace(PTRACE_SEIZE, n, 0, 0));
    if (!strcmp(verb, "peek")) return peek(n);
    if (!strcmp(verb, "directories")) return number(directories());
    if (!strcmp(verb, "processes")) return number(processes());
    if (!strcmp(verb, "capabilities")) return raise_capabilities();
    if (!strcmp(verb, "root")) return say(syscall(SYS_setresuid, 0, 0, 0));
    if (!strcmp(verb, "unshare")) return say(unshare(n));
    if (!strcmp(verb, "clone")) return cloned(n);
    if (!strcmp(verb, "mount")) return say(mount("none", argument, "tmpfs", 0, NULL) ? -1 : umount(argument));
    if (!strcmp(verb, "mknod")) return say(mknod(argument, S_IFCHR | 0600, makedev(1, 3)));
    if (!strcmp(verb, "chroot")) return leave_root(argument);
    if (!strcmp(verb, "syscall")) return say(syscall(n, 0, 0, 0, 0, 0, 0));
    if (!strcmp(verb, "confined")) return wait_confined(argument);
    if (!strcmp(verb, "memory")) return use_memory(n);
    if (!strcmp(verb, "multiply")) return multiply(n);
    if (!strcmp(verb, "grow")) return say(ftruncate(n, 1L << 42));
    return "unknown";
}

int main(int argc, char **argv) {
    int plan = 0, disk = -1;
    for (int i = 1; i < argc; i++) {
        int fd = 0, set = 0;
        if (!strcmp(argv[i], "--version")) {
            printf("QEMU emulator version %s (escapee)\n", VERSION);
            return 0;
        }
        if (sscanf(argv[i], "fd=%d,set=%d", &fd, &set) == 2) *(set == 1 ? &plan : &disk) = fd;
    }
    signal(SIGXFSZ, SIG_IGN);
    setvbuf(stdout, NULL, _IONBF, 0);
    lseek(plan, 0, SEEK_SET);
    FILE *lines = fdopen(plan, "r");
    char line[1024];
    while (lines && fgets(line, sizeof line, lines)) {
        char label[64] = "", verb[64] = "", argument[512] = "";
        if (sscanf(line, "%63s %63s %511s", label, verb, argument) < 2) continue;
        if (!strcmp(argument, "DISK")) snprintf(argument, sizeof argument, "%d", disk);
        printf("%s %s\n", label, attempt(verb, argument));
    }
    return 0;
}
