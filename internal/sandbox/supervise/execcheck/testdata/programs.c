// The programs of the tests: what executes programs in all forms, what tells of its
// arguments, and what tries to have another program executed than the one that was
// judged. programs NAME [ARGUMENT]... does one of them.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void die(const char *what) {
	perror(what);
	exit(99);
}

// Forms. Each is called in a process of its own and returns only if it has failed.

static char **form_argv;

// execute calls execve, also with what no compiler would let through.
static int execute(const void *path, const void *argv, const void *env) { return syscall(SYS_execve, path, argv, env); }

static int form_path(void) { return execute(form_argv[0], form_argv, environ); }

// at DIRECTORY PATH
static int form_at(void) {
	int dir = open(form_argv[0], O_PATH);
	if (dir < 0)
		die("open");
	return syscall(SYS_execveat, dir, form_argv[1], form_argv + 1, environ, 0);
}

static int form_at_closed(void) {
	int dir = open(form_argv[0], O_PATH | O_CLOEXEC);
	if (dir < 0)
		die("open");
	return syscall(SYS_execveat, dir, form_argv[1], form_argv + 1, environ, 0);
}

static int form_nofollow(void) {
	return syscall(SYS_execveat, AT_FDCWD, form_argv[0], form_argv, environ, AT_SYMLINK_NOFOLLOW);
}

static int form_badflags(void) { return syscall(SYS_execveat, AT_FDCWD, form_argv[0], form_argv, environ, 1 << 20); }

static int form_badfd(void) { return syscall(SYS_execveat, 77, "x", form_argv, environ, 0); }

static int form_descriptor(void) {
	int fd = open(form_argv[0], O_RDONLY);
	if (fd < 0)
		die("open");
	return syscall(SYS_execveat, fd, "", form_argv, environ, AT_EMPTY_PATH);
}

static int form_descriptor_closed(void) {
	int fd = open(form_argv[0], O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die("open");
	return syscall(SYS_execveat, fd, "", form_argv, environ, AT_EMPTY_PATH);
}

static int form_fexecve(void) {
	int fd = open(form_argv[0], O_PATH);
	if (fd < 0)
		die("open");
	return fexecve(fd, form_argv, environ);
}

static int copy(unsigned flags) {
	int from = open(form_argv[0], O_RDONLY | O_CLOEXEC), to = memfd_create("copy", flags);
	char buf[65536];
	ssize_t n;
	if (from < 0 || to < 0)
		die("memfd");
	while ((n = read(from, buf, sizeof buf)) > 0)
		if (write(to, buf, n) != n)
			die("write");
	return to;
}

static int form_memfd(void) {
	int fd = copy(0);
	char path[64];
	// A descriptor for writing would be ETXTBSY.
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int again = open(path, O_RDONLY);
	if (again < 0)
		die("open");
	close(fd);
	return fexecve(again, form_argv, environ);
}

static int form_busy(void) { return fexecve(copy(0), form_argv, environ); }

static int form_check(void) {
	int n = syscall(SYS_execveat, AT_FDCWD, form_argv[0], form_argv, environ, 0x10000); // AT_EXECVE_CHECK
	if (n == 0) {
		printf("checked\n");
		fflush(stdout);
		_exit(0);
	}
	return n;
}

static int form_null_argv(void) { return execute(form_argv[0], NULL, environ); }

static int form_no_argv(void) {
	char *none[] = {NULL};
	return execve(form_argv[0], none, environ);
}

static int form_bad_path(void) { return execute((void *)1, form_argv, environ); }

static int form_bad_argv(void) { return execute(form_argv[0], (void *)1, environ); }

static int form_bad_argument(void) {
	char *argv[] = {form_argv[0], (char *)1, NULL};
	return execve(form_argv[0], argv, environ);
}

static int form_bad_env(void) { return execute(form_argv[0], form_argv, (void *)1); }

// many COUNT SIZE PROGRAM NAME: so many arguments of that size behind the name.
static int form_many(void) {
	int count = atoi(form_argv[0]), size = atoi(form_argv[1]);
	char *argument = malloc(size + 1), **argv = calloc(count + 3, sizeof *argv);
	memset(argument, 'x', size);
	argument[size] = 0;
	argv[0] = form_argv[2];
	argv[1] = form_argv[3];
	for (int i = 0; i < count; i++)
		argv[2 + i] = argument;
	return execve(argv[0], argv, environ);
}

// edge PROGRAM: the last argument ends where memory ends.
static int form_edge(void) {
	char *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(two + 4096, 4096, PROT_NONE);
	char *argument = two + 4096 - 5;
	memcpy(argument, "edge", 5);
	char **argv = (char **)(two + 4096 - 5 - 4 * sizeof(char *) - 3);
	argv = (char **)((uintptr_t)argv & ~7ul);
	argv[0] = form_argv[0];
	argv[1] = form_argv[1];
	argv[2] = argument;
	argv[3] = NULL;
	return execve(form_argv[0], argv, environ);
}

static int form_unterminated(void) {
	char *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(two + 4096, 4096, PROT_NONE);
	memset(two, 'x', 4096);
	char *argv[] = {form_argv[0], two + 4000, NULL};
	return execve(form_argv[0], argv, environ);
}

static void *in_thread(void *result) {
	execve(form_argv[0], form_argv, environ);
	*(int *)result = errno;
	return NULL;
}

// thread: a thread that is not the leader executes; the leader sleeps.
static int form_thread(void) {
	pthread_t thread;
	int result = 0;
	if (pthread_create(&thread, NULL, in_thread, &result))
		die("pthread_create");
	pthread_join(thread, NULL);
	errno = result;
	return -1;
}

static void *in_lonely_thread(void *unused) {
	usleep(1000); // the leader has ended, or ends meanwhile
	execve(form_argv[0], form_argv, environ);
	_exit(98);
}

// lonely-thread: the leader has ended.
static int form_lonely_thread(void) {
	pthread_t thread;
	if (pthread_create(&thread, NULL, in_lonely_thread, NULL))
		die("pthread_create");
	syscall(SYS_exit, 0);
	return -1;
}

static void *busy(void *unused) {
	for (;;)
		getppid();
	return NULL;
}

// crowd: twenty other threads are busy.
static int form_crowd(void) {
	pthread_t thread;
	for (int i = 0; i < 20; i++)
		if (pthread_create(&thread, NULL, busy, NULL))
			die("pthread_create");
	return form_path();
}

// unseen: the process has made itself untraceable, so its image cannot be seen.
static int form_unseen(void) {
	prctl(PR_SET_DUMPABLE, 0);
	return form_path();
}

static const struct {
	const char *name;
	int (*execute)(void);
} forms[] = {
	{"path", form_path},
	{"at", form_at},
	{"at-closed", form_at_closed},
	{"nofollow", form_nofollow},
	{"badflags", form_badflags},
	{"badfd", form_badfd},
	{"descriptor", form_descriptor},
	{"descriptor-closed", form_descriptor_closed},
	{"fexecve", form_fexecve},
	{"memfd", form_memfd},
	{"busy", form_busy},
	{"check", form_check},
	{"null-argv", form_null_argv},
	{"no-argv", form_no_argv},
	{"bad-path", form_bad_path},
	{"bad-argv", form_bad_argv},
	{"bad-argument", form_bad_argument},
	{"bad-env", form_bad_env},
	{"many", form_many},
	{"edge", form_edge},
	{"unterminated", form_unterminated},
	{"thread", form_thread},
	{"lonely-thread", form_lonely_thread},
	{"crowd", form_crowd},
	{"unseen", form_unseen},
};

static void tell(int status) {
	if (WIFEXITED(status))
		printf("exit %d\n", WEXITSTATUS(status));
	else
		printf("signal %d\n", WTERMSIG(status));
	fflush(stdout);
}

static int do_form(int argc, char **argv) {
	form_argv = argv + 1;
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		if (strcmp(forms[i].name, argv[0]))
			continue;
		pid_t pid = fork();
		if (pid == 0) {
			forms[i].execute();
			printf("errno %s\n", strerrorname_np(errno));
			fflush(stdout);
			_exit(1);
		}
		int status;
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			die("waitpid");
		tell(status);
		return 0;
	}
	fprintf(stderr, "no form %s\n", argv[0]);
	return 2;
}

// replace FORM ARGUMENT...: this process itself executes.
static int do_replace(int argc, char **argv) {
	form_argv = argv + 1;
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (!strcmp(forms[i].name, argv[0]))
			forms[i].execute();
	return 97;
}

static int do_vfork(int argc, char **argv) {
	pid_t pid = vfork();
	if (pid == 0) {
		execve(argv[0], argv, environ);
		_exit(errno);
	}
	int status;
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	tell(status);
	return 0;
}

static int do_spawn(int argc, char **argv) {
	pid_t pid;
	int err = posix_spawn(&pid, argv[0], NULL, NULL, argv, environ);
	if (err) {
		printf("errno %s\n", strerrorname_np(err));
		return 0;
	}
	int status;
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	tell(status);
	return 0;
}

// heads DIRECTORY COUNT: executes the files 0 to COUNT-1.
static int do_heads(int argc, char **argv) {
	int count = atoi(argv[1]);
	if (chdir(argv[0]))
		die("chdir");
	for (int i = 0; i < count; i++) {
		char path[64];
		snprintf(path, sizeof path, "./%d", i);
		printf("%d: ", i);
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			execl(path, path, "argument", NULL);
			printf("errno %s\n", strerrorname_np(errno));
			fflush(stdout);
			_exit(1);
		}
		int status;
		if (waitpid(pid, &status, 0) != pid)
			die("waitpid");
		tell(status);
	}
	return 0;
}

// cpus counts the CPUs of the calling thread.
static int cpus(void) {
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) < 0)
		die("sched_getaffinity");
	return CPU_COUNT(&set);
}

// args ...: prints on how many CPUs it runs and how it was called; a long argument in short.
static int do_args(int argc, char **argv) {
	printf("%d CPUs: ", cpus());
	for (int i = -1; i < argc; i++) {
		size_t n = strlen(argv[i]);
		if (n < 300)
			printf("[%s]", argv[i]);
		else
			printf("[%zu bytes]", n);
		if (i > 20) {
			printf(" and %d more", argc - i);
			break;
		}
	}
	printf("\n");
	return 0;
}

// code CODE
static int do_code(int argc, char **argv) { return atoi(argv[0]); }

// signal NUMBER: ends by that signal.
static int do_signal(int argc, char **argv) {
	struct rlimit none = {0, 0};
	setrlimit(RLIMIT_CORE, &none);
	kill(getpid(), atoi(argv[0]));
	pause();
	return 96;
}

// orphans COUNT PROGRAM: leaves so many orphans behind that execute again and again.
static int do_orphans(int argc, char **argv) {
	int count = atoi(argv[0]);
	for (int i = 0; i < count; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			if (fork() == 0) {
				setsid();
				char rest[16];
				snprintf(rest, sizeof rest, "%d", 20 + i);
				execl(argv[1], argv[1], "again", rest, argv[1], NULL);
			}
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	}
	return 0;
}

// again COUNT PROGRAM: executes itself so many times, and ends.
static int do_again(int argc, char **argv) {
	int left = atoi(argv[0]);
	if (left == 0)
		return 0;
	char rest[16];
	snprintf(rest, sizeof rest, "%d", left - 1);
	execl(argv[1], argv[1], "again", rest, argv[1], NULL);
	return 95;
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

// loop COUNT PROGRAM: executes the program in a child, so many times, and prints the
// nanoseconds of one.
static int do_loop(int argc, char **argv) {
	int count = atoi(argv[0]);
	double begun = now();
	for (int i = 0; i < count; i++) {
		pid_t pid = vfork();
		if (pid == 0) {
			execve(argv[1], argv + 1, environ);
			_exit(99);
		}
		int status;
		if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) == 99)
			die("loop");
	}
	printf("%.0f\n", (now() - begun) * 1e9 / count);
	return 0;
}

// flood CHILDREN THREADS COUNT PROGRAM: so many processes, each with so many threads
// that all execute at once what does not exist, and at last the program.
static char *flood_program;
static int flood_count;

static void *flooding(void *unused) {
	char *argv[] = {"flood", NULL};
	for (int i = 0; i < flood_count; i++) {
		execve("/nonexistent", argv, environ);
		if (errno != ENOENT)
			_exit(94);
		execve("/dev/null", argv, environ);
		if (errno != EACCES)
			_exit(93);
	}
	char *code[] = {flood_program, "code", "0", NULL};
	execve(flood_program, code, environ);
	_exit(92);
}

static int do_flood(int argc, char **argv) {
	int children = atoi(argv[0]), threads = atoi(argv[1]), bad = 0;
	flood_count = atoi(argv[2]);
	flood_program = argv[3];
	for (int i = 0; i < children; i++) {
		if (fork() != 0)
			continue;
		for (int j = 1; j < threads; j++) {
			pthread_t thread;
			if (pthread_create(&thread, NULL, flooding, NULL))
				die("pthread_create");
		}
		flooding(NULL);
	}
	for (int i = 0; i < children; i++) {
		int status;
		if (wait(&status) < 0)
			die("wait");
		if (status != 0) {
			tell(status);
			bad++;
		}
	}
	printf("%d bad\n", bad);
	return 0;
}

// Races. Each counts how its tries have ended; the programs leave marks in a file as
// well. The codes of the programs, and of a try that did not execute anything:
enum { RIGHT = 10, WRONG = 11, REFUSED = 12, GONE = 13, FAILED = 14 };

static struct {
	long tries, right, wrong, killed, refused, gone, failed, stopped;
} count;

static int refusal(void) {
	switch (errno) {
	case EACCES:
	case EPERM:
		return REFUSED;
	case ENOSYS: // there is no supervisor any more
		return GONE;
	}
	perror("execve");
	return FAILED;
}

static void counted(int status) {
	count.tries++;
	if (WIFSIGNALED(status)) {
		count.killed += WTERMSIG(status) == SIGKILL;
		count.failed += WTERMSIG(status) != SIGKILL;
		return;
	}
	switch (WEXITSTATUS(status)) {
	case RIGHT:
		count.right++;
		break;
	case WRONG:
		count.wrong++;
		break;
	case REFUSED:
		count.refused++;
		break;
	case GONE:
		count.gone++;
		break;
	default:
		count.failed++;
	}
}

static void await(pid_t pid) {
	int status;
	for (;;) {
		if (waitpid(pid, &status, WUNTRACED) != pid)
			die("waitpid");
		if (!WIFSTOPPED(status))
			break;
		count.stopped++;
	}
	counted(status);
}

// What is flipped: the path of the right program ends with a p, that of the wrong
// one with a q; the right argument is r, the wrong one w.
static struct shared {
	volatile char path[512];
	volatile char argument[8];
	volatile int stop;
} *shared;

static size_t flipped; // the index in path

static void share(const char *dir) {
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	snprintf((char *)shared->path, sizeof shared->path, "%s/p", dir);
	flipped = strlen((char *)shared->path) - 1;
	strcpy((char *)shared->argument, "r");
}

// Pauses of different lengths, so that every moment is met.
static void linger(unsigned *seed) {
	for (volatile int n = rand_r(seed) % 3000; n > 0; n--)
		;
}

static void *flip_path(void *unused) {
	for (unsigned seed = 1; !shared->stop;) {
		shared->path[flipped] ^= 'p' ^ 'q';
		linger(&seed);
	}
	return NULL;
}

static void *flip_argument(void *unused) {
	for (unsigned seed = 2; !shared->stop;) {
		shared->argument[0] ^= 'r' ^ 'w';
		linger(&seed);
	}
	return NULL;
}

static pid_t in_child(void *(*do_it)(void *), int clone_flags) {
	pid_t pid = syscall(SYS_clone, clone_flags | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		do_it(NULL);
		_exit(0);
	}
	if (pid < 0)
		die("clone");
	return pid;
}

static void execute_shared(void) {
	char *argv[] = {"program", (char *)shared->argument, NULL};
	execve((char *)shared->path, argv, environ);
}

static double deadline;

// over tells whether the race has ended. On a machine that is busy the first try may begin late.
static int over(void) { return (now() > deadline && count.tries > 0) || count.gone > 200; }

// memory: two other processes flip path and argument.
static void race_memory(void) {
	pid_t a = in_child(flip_path, 0), b = in_child(flip_argument, 0);
	while (!over()) {
		pid_t pid = fork();
		if (pid == 0) {
			execute_shared();
			_exit(refusal());
		}
		await(pid);
	}
	shared->stop = 1;
	waitpid(a, NULL, 0);
	waitpid(b, NULL, 0);
}

// threads: one to three threads execute at once, with the leader or without it, and
// another one flips.
static void *execute_once(void *unused) {
	execute_shared();
	if (refusal() == FAILED)
		_exit(FAILED);
	return NULL;
}

static void race_threads(void) {
	for (unsigned seed = 3; !over();) {
		int threads = 1 + rand_r(&seed) % 3, leader = rand_r(&seed) % 2;
		pid_t pid = fork();
		if (pid == 0) {
			pthread_t flipping, executing[3];
			pthread_create(&flipping, NULL, rand_r(&seed) % 2 ? flip_path : flip_argument, NULL);
			for (int i = 0; i < threads; i++)
				pthread_create(&executing[i], NULL, execute_once, NULL);
			if (leader)
				execute_once(NULL);
			for (int i = 0; i < threads; i++)
				pthread_join(executing[i], NULL);
			// All were refused. Without a supervisor the refusal is another one.
			execute_shared();
			_exit(refusal());
		}
		await(pid);
	}
}

// vfork: two threads of the parent flip, with which the child shares its memory.
static void race_vfork(void) {
	pthread_t a, b;
	pthread_create(&a, NULL, flip_path, NULL);
	pthread_create(&b, NULL, flip_argument, NULL);
	while (!over()) {
		pid_t pid = vfork();
		if (pid == 0) {
			execute_shared();
			_exit(refusal());
		}
		await(pid);
	}
	shared->stop = 1;
	pthread_join(a, NULL);
	pthread_join(b, NULL);
}

// link: the path is a symlink that is replaced again and again.
static char *race_dir, link_path[512];

static void *swap_links(void *unused) {
	char right[512], wrong[512], next[512];
	snprintf(right, sizeof right, "%s/p", race_dir);
	snprintf(wrong, sizeof wrong, "%s/q", race_dir);
	snprintf(next, sizeof next, "%s/next", race_dir);
	while (!shared->stop) {
		unlink(next);
		if (symlink(wrong, next) || rename(next, link_path) || symlink(right, next) || rename(next, link_path))
			die("link");
	}
	return NULL;
}

static void race_link(void) {
	char right[512];
	snprintf(right, sizeof right, "%s/p", race_dir);
	snprintf(link_path, sizeof link_path, "%s/link", race_dir);
	unlink(link_path);
	if (symlink(right, link_path))
		die("symlink");
	pid_t swapping = in_child(swap_links, 0);
	char *argv[] = {"program", "r", NULL};
	while (!over()) {
		pid_t pid = fork();
		if (pid == 0) {
			execve(link_path, argv, environ);
			_exit(refusal());
		}
		await(pid);
	}
	shared->stop = 1;
	waitpid(swapping, NULL, 0);
}

// cwd: a process with the same working directory goes from one to another.
static void *swap_cwd(void *unused) {
	char right[512], wrong[512];
	snprintf(right, sizeof right, "%s/right", race_dir);
	snprintf(wrong, sizeof wrong, "%s/wrong", race_dir);
	for (unsigned seed = 4; !shared->stop; linger(&seed))
		if (chdir(wrong) || chdir(right))
			die("chdir");
	return NULL;
}

static void *execute_relative(void *unused) {
	char *argv[] = {"program", "r", NULL};
	execve("./program", argv, environ);
	_exit(refusal());
}

static void race_cwd(void) {
	if (chdir(race_dir) || chdir("right"))
		die("chdir");
	pid_t swapping = in_child(swap_cwd, CLONE_FS);
	while (!over())
		await(in_child(execute_relative, CLONE_FS));
	shared->stop = 1;
	waitpid(swapping, NULL, 0);
}

// signals: as memory; and the process that executes is stopped, continued and killed
// at random.
static pthread_mutex_t target_mutex = PTHREAD_MUTEX_INITIALIZER;
static int target = -1; // a pidfd, so that nobody else is hit

static void *disturb(void *unused) {
	static const int signals[] = {SIGSTOP, SIGCONT, SIGSTOP, SIGCONT, SIGTSTP, SIGCONT, SIGKILL};
	for (unsigned seed = 5; !shared->stop;) {
		for (int i = 0; i < 20; i++)
			linger(&seed);
		int n = signals[rand_r(&seed) % (sizeof signals / sizeof *signals)];
		pthread_mutex_lock(&target_mutex);
		if (target >= 0) {
			syscall(SYS_pidfd_send_signal, target, n, NULL, 0);
			if (n == SIGSTOP || n == SIGTSTP) {
				linger(&seed);
				syscall(SYS_pidfd_send_signal, target, SIGCONT, NULL, 0);
			}
		}
		pthread_mutex_unlock(&target_mutex);
	}
	return NULL;
}

static void race_signals(void) {
	pid_t a = in_child(flip_path, 0), b = in_child(flip_argument, 0);
	pthread_t disturbing;
	pthread_create(&disturbing, NULL, disturb, NULL);
	while (!over()) {
		pid_t pid = fork();
		if (pid == 0) {
			execute_shared();
			_exit(refusal());
		}
		pthread_mutex_lock(&target_mutex);
		target = syscall(SYS_pidfd_open, pid, 0);
		pthread_mutex_unlock(&target_mutex);
		await(pid);
		pthread_mutex_lock(&target_mutex);
		close(target);
		target = -1;
		pthread_mutex_unlock(&target_mutex);
	}
	shared->stop = 1;
	pthread_join(disturbing, NULL);
	waitpid(a, NULL, 0);
	waitpid(b, NULL, 0);
}

// descriptor: a thread exchanges the file behind the descriptor that is executed.
enum { DESCRIPTOR = 50 };
static int right_fd, wrong_fd;

static void *swap_descriptor(void *unused) {
	for (unsigned seed = 6;; linger(&seed))
		if (dup2(wrong_fd, DESCRIPTOR) < 0 || (linger(&seed), dup2(right_fd, DESCRIPTOR)) < 0)
			_exit(FAILED);
	return NULL;
}

static void race_descriptor(void) {
	char path[512];
	snprintf(path, sizeof path, "%s/p", race_dir);
	right_fd = open(path, O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof path, "%s/q", race_dir);
	wrong_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (right_fd < 0 || wrong_fd < 0 || dup2(right_fd, DESCRIPTOR) < 0)
		die("descriptor");
	char *argv[] = {"program", "r", NULL};
	while (!over()) {
		pid_t pid = fork();
		if (pid == 0) {
			pthread_t swapping;
			pthread_create(&swapping, NULL, swap_descriptor, NULL);
			syscall(SYS_execveat, DESCRIPTOR, "", argv, environ, AT_EMPTY_PATH);
			_exit(refusal());
		}
		await(pid);
	}
}

// content: another process writes the file anew, in place.
static void *swap_content(void *unused) {
	static char contents[2][4096];
	ssize_t sizes[2];
	char path[512];
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s/program", race_dir, i ? "wrong" : "right");
		int fd = open(path, O_RDONLY);
		if (fd < 0 || (sizes[i] = read(fd, contents[i], sizeof contents[i])) <= 0)
			die("content");
		close(fd);
	}
	snprintf(path, sizeof path, "%s/f", race_dir);
	for (unsigned seed = 7, i = 0; !shared->stop; i++, linger(&seed)) {
		int fd = open(path, O_WRONLY | O_TRUNC);
		if (fd < 0)
			continue; // it runs
		if (write(fd, contents[i % 2], sizes[i % 2]) != sizes[i % 2])
			die("content");
		close(fd);
		for (int n = 0; n < 10; n++)
			linger(&seed);
	}
	return NULL;
}

static void race_content(void) {
	char path[512];
	snprintf(path, sizeof path, "%s/f", race_dir);
	char *argv[] = {"program", "r", NULL};
	pid_t swapping = in_child(swap_content, 0);
	while (!over()) {
		pid_t pid = fork();
		if (pid == 0) {
			execve(path, argv, environ);
			// It is being written, or has nothing in it.
			_exit(errno == ETXTBSY || errno == ENOEXEC ? REFUSED : refusal());
		}
		await(pid);
	}
	shared->stop = 1;
	waitpid(swapping, NULL, 0);
}

// race KIND MILLISECONDS DIRECTORY
static int do_race(int argc, char **argv) {
	race_dir = argv[2];
	share(race_dir);
	prctl(PR_SET_PDEATHSIG, 0);
	deadline = now() + atof(argv[1]) / 1000;
	if (!strcmp(argv[0], "memory"))
		race_memory();
	else if (!strcmp(argv[0], "threads"))
		race_threads();
	else if (!strcmp(argv[0], "vfork"))
		race_vfork();
	else if (!strcmp(argv[0], "link"))
		race_link();
	else if (!strcmp(argv[0], "cwd"))
		race_cwd();
	else if (!strcmp(argv[0], "signals"))
		race_signals();
	else if (!strcmp(argv[0], "descriptor"))
		race_descriptor();
	else if (!strcmp(argv[0], "content"))
		race_content();
	else
		return 2;
	printf("{\"Tries\":%ld,\"Right\":%ld,\"Wrong\":%ld,\"Killed\":%ld,\"Refused\":%ld,\"Gone\":%ld,\"Failed\":%ld,\"Stopped\":%ld}\n",
		count.tries, count.right, count.wrong, count.killed, count.refused, count.gone, count.failed, count.stopped);
	return 0;
}

int main(int argc, char **argv) {
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} programs[] = {
		{"form", do_form},
		{"replace", do_replace},
		{"vfork", do_vfork},
		{"spawn", do_spawn},
		{"heads", do_heads},
		{"args", do_args},
		{"code", do_code},
		{"signal", do_signal},
		{"orphans", do_orphans},
		{"again", do_again},
		{"loop", do_loop},
		{"flood", do_flood},
		{"race", do_race},
	};
	for (size_t i = 0; argc > 1 && i < sizeof programs / sizeof *programs; i++)
		if (!strcmp(argv[1], programs[i].name))
			return programs[i].run(argc - 2, argv + 2);
	// Scripts and calls without arguments end here.
	return argc > 0 ? do_args(argc - 1, argv + 1) : 3;
}
