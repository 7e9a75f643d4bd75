package metrics

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ofProcess returns the present metrics of the Go runtime and of the process, under the names that
// all Prometheus clients use. The agent may not read all of /proc/self, because it is not dumpable.
// Metrics that it may not read are left out.
func ofProcess(started time.Time) []*family {
	var all []*family
	add := func(name, help string, k kind, value float64, labels ...string) {
		all = append(all, &family{name, help, k, []func(*page){func(p *page) { p.sample(name, value, labels...) }}})
	}
	bytes := func(name, help string, n uint64) { add("go_memstats_"+name, help, gauge, float64(n)) }

	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	bytes("alloc_bytes", "Memory of objects on the heap.", m.Alloc)
	bytes("buck_hash_sys_bytes", "Memory of the profiler's table of buckets.", m.BuckHashSys)
	bytes("gc_sys_bytes", "Memory of the garbage collector's own data.", m.GCSys)
	bytes("heap_alloc_bytes", "Memory of objects on the heap, as go_memstats_alloc_bytes.", m.HeapAlloc)
	bytes("heap_idle_bytes", "Memory of the heap that waits to be used.", m.HeapIdle)
	bytes("heap_inuse_bytes", "Memory of the heap in use.", m.HeapInuse)
	bytes("heap_objects", "Objects on the heap.", m.HeapObjects)
	bytes("heap_released_bytes", "Memory of the heap given back to the system.", m.HeapReleased)
	bytes("heap_sys_bytes", "Memory of the heap taken from the system.", m.HeapSys)
	bytes("mcache_inuse_bytes", "Memory of mcache structures in use.", m.MCacheInuse)
	bytes("mcache_sys_bytes", "Memory of mcache structures taken from the system.", m.MCacheSys)
	bytes("mspan_inuse_bytes", "Memory of mspan structures in use.", m.MSpanInuse)
	bytes("mspan_sys_bytes", "Memory of mspan structures taken from the system.", m.MSpanSys)
	bytes("next_gc_bytes", "Size of the heap at which the next garbage collection begins.", m.NextGC)
	bytes("other_sys_bytes", "Other memory taken from the system.", m.OtherSys)
	bytes("stack_inuse_bytes", "Memory of stacks in use.", m.StackInuse)
	bytes("stack_sys_bytes", "Memory of stacks taken from the system.", m.StackSys)
	bytes("sys_bytes", "Memory taken from the system.", m.Sys)
	add("go_memstats_alloc_bytes_total", "Memory of all objects that were put on the heap so far.", counter, float64(m.TotalAlloc))
	add("go_memstats_frees_total", "Objects freed.", counter, float64(m.Frees))
	add("go_memstats_mallocs_total", "Objects allocated.", counter, float64(m.Mallocs))
	add("go_memstats_last_gc_time_seconds", "When the last garbage collection ended, in seconds since 1970.", gauge, float64(m.LastGC)/1e9)
	add("go_goroutines", "Goroutines that exist.", gauge, float64(runtime.NumGoroutine()))
	threads, _ := runtime.ThreadCreateProfile(nil) // without room it returns only the number of threads
	add("go_threads", "Threads created.", gauge, float64(threads))
	add("go_info", "The Go environment: the version is in the label.", gauge, 1, "version", runtime.Version())
	all = append(all, pauses())

	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		used := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		add("process_cpu_seconds_total", "Processor time used.", counter, used.Seconds())
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		add("process_max_fds", "Descriptors that the agent may have open.", gauge, float64(limit.Cur))
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		add("process_open_fds", "Descriptors that the agent has open.", gauge, float64(len(open)-1)) // without the descriptor of ReadDir
	}
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		pages := strings.Fields(string(statm))
		for i, name := range []string{"virtual", "resident"} {
			n, _ := strconv.ParseUint(pages[i], 10, 64) // the kernel writes numbers
			add("process_"+name+"_memory_bytes", strings.ToUpper(name[:1])+name[1:]+" memory.", gauge, float64(n)*float64(os.Getpagesize()))
		}
	}
	add("process_start_time_seconds", "When the agent was started, in seconds since 1970.", gauge, float64(started.UnixMilli())/1e3)
	return all
}

// pauses returns the pauses of the garbage collector. The quantiles cover only the latest pauses.
func pauses() *family {
	const name = "go_gc_duration_seconds"
	stats := debug.GCStats{PauseQuantiles: make([]time.Duration, 5)}
	debug.ReadGCStats(&stats)
	return &family{name, "Pauses of the garbage collector.", summary, []func(*page){func(p *page) {
		for i, quantile := range []string{"0", "0.25", "0.5", "0.75", "1"} {
			p.sample(name, stats.PauseQuantiles[i].Seconds(), "quantile", quantile)
		}
		p.sample(name+"_sum", stats.PauseTotal.Seconds())
		p.sample(name+"_count", float64(stats.NumGC))
	}}}
}
