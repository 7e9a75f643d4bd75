package sandbox

// ProcfsSecrets returns the names in the root of a procfs that reveal something
// about the kernel or about other processes. A view shows them empty, and a
// supervisor that judges reads refuses them. For some, such as kpageflags, the
// kernel requires only uid 0, which a command in a container may have.
func ProcfsSecrets() []string {
	return []string{
		"kcore", "keys", "key-users", "timer_list", "timer_stats", "sched_debug", "kallsyms",
		"kpagecount", "kpageflags", "kpagecgroup", "iomem", "ioports", "vmallocinfo", "modules", "pagetypeinfo", "allocinfo",
		"kmsg", "latency_stats", "vmcore",
	}
}
