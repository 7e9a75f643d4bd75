package exectree

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/test/rig"
)

// compare measures what once returns for a command that nobody watches, nil, and for each way, by
// turns, and reports how many times the bare one the others are: the median of the rounds. It also
// does that for the time of processors that all processes have taken, which tells more where
// others use the machine.
func compare(b *testing.B, once func(*way) float64) {
	b.Helper()
	all := ways()
	ratios, used := make([][]float64, len(all)), make([][]float64, len(all))
	measured := func(w *way) (value, processors float64) {
		before := processorTime(b)
		value = once(w)
		return value, processorTime(b) - before
	}
	for b.Loop() {
		bare, bareUsed := measured(nil)
		for i := range all {
			value, processors := measured(&all[i])
			ratios[i], used[i] = append(ratios[i], value/bare), append(used[i], processors/bareUsed)
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, w := range all {
		name := strings.ReplaceAll(w.name, " ", "-")
		slices.Sort(ratios[i])
		slices.Sort(used[i])
		b.ReportMetric(ratios[i][len(ratios[i])/2], "x-"+name)
		b.ReportMetric(used[i][len(used[i])/2], "x-cpu-"+name)
	}
}

// processorTime is what all processes have used that were waited for, in seconds.
func processorTime(b *testing.B) float64 {
	var u unix.Rusage
	rig.Must(b, unix.Getrusage(unix.RUSAGE_CHILDREN, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// allowing is a policy of many rules, by which nothing of what a benchmark runs is refused.
func allowing(b *testing.B) *execpolicy.Policy {
	var text strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, "prefix_rule(pattern=[\"program%d\", [\"a\", \"b\"]], decision=\"forbidden\")\n", i)
	}
	return rules(b, rule.Allow, text.String())
}

// BenchmarkExec is vfork, execve, exit and wait of a static program that does nothing.
func BenchmarkExec(b *testing.B) {
	program, dir, policy := programs(b), rig.Public(b), allowing(b)
	compare(b, func(w *way) float64 {
		argv := []string{program, "loop", "1000", program, "code", "0"}
		var text string
		if w == nil {
			out, err := exec.Command(argv[0], argv[1:]...).Output()
			rig.Must(b, err)
			text = string(out)
		} else {
			text = w.run(b, dir, policy, nil, argv...).out
		}
		ns, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			b.Fatal(text)
		}
		return ns
	})
}

// BenchmarkMake compiles 50 files of C, as test/sandboxbench does.
func BenchmarkMake(b *testing.B) {
	dir, policy := rig.Public(b), allowing(b)
	var makefile strings.Builder
	makefile.WriteString("all:")
	for i := range 50 {
		fmt.Fprintf(&makefile, " f%d.o", i)
		var text strings.Builder
		text.WriteString("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n")
		for n := range 40 {
			fmt.Fprintf(&text, "int f%d_%d(int a, char *b) { char c[64]; snprintf(c, sizeof c, \"%%d %%s\", a, b); return atoi(c) + (int)strlen(b) + %d; }\n", i, n, n)
		}
		write(b, filepath.Join(dir, fmt.Sprintf("f%d.c", i)), []byte(text.String()))
	}
	makefile.WriteString("\n%.o: %.c\n\tgcc -O1 -c -o $@ $<\n")
	write(b, filepath.Join(dir, "Makefile"), []byte(makefile.String()))
	compare(b, func(w *way) float64 {
		objects, _ := filepath.Glob(dir + "/*.o")
		for _, object := range objects {
			rig.Must(b, os.Remove(object))
		}
		begun := time.Now()
		if w == nil {
			if out, err := exec.Command("make", "-s", "-j2", "-C", dir).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		} else if r := w.run(b, dir, policy, nil, "make", "-s", "-j2"); r.code != 0 {
			b.Fatalf("code %d: %s", r.code, r.out)
		}
		return float64(time.Since(begun))
	})
}
