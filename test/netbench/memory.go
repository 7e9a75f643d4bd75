package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/execagent/execagent/test/rig"
)

// idleConnections is how many connections are open at once when memory is measured.
const idleConnections = 500

// memory prints how much memory of the agent's processes an idle connection takes.
func (b *bench) memory(ctx context.Context, kind, port string) error {
	cmd := b.command(ctx, kind, port, "idle")
	cmd.Stdout = nil
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(output)
	var held [2]int
	for i := range held {
		if _, err := lines.ReadString('\n'); err != nil {
			return fmt.Errorf("%s: it has not connected: %w", kind, err)
		}
		if held[i], err = b.ofAgents(cmd.Process.Pid); err != nil {
			return err
		}
		if _, err := io.WriteString(input, "\n"); err != nil {
			return err
		}
	}
	fmt.Printf("  memory of an idle connection: %.1f KiB of the agent's own\n", float64(held[1]-held[0])/idleConnections)
	_ = input.Close()
	return cmd.Wait()
}

// ofAgents returns the memory of the agent's processes at and below pid, in KiB, without pages of files.
func (b *bench) ofAgents(pid int) (sum int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return 0, err
	}
	if !strings.Contains(string(text), "\x00"+inside+"\x00") || strings.Contains(string(text), "sandbox\x00") {
		own, ok := rig.Memory(pid, "RssAnon")
		if !ok {
			return 0, fmt.Errorf("process %d has ended", pid)
		}
		sum += own
	}
	for _, child := range rig.Children(pid) {
		more, err := b.ofAgents(child)
		if err != nil {
			return 0, err
		}
		sum += more
	}
	return sum, nil
}
