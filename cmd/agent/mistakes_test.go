package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestMistakes: what users get wrong, in testdata/mistakes.txt.
func TestMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty": "", "space": "to ken\n", "env": "A=1\n=2\n", "bundle": "none", "typo": "[exec]\ntiemout = \"1s\"\n", "token": "right", "wrong": "wrong",
		"broken": "[contexts.a]\nurl = 'x'\ntokn = 'topsecret'\n",
		"right":  "[contexts.a]\nurl = '127.0.0.1:1'\n[contexts.r]\nregistry = 'http://127.0.0.1:1'\ntoken_command = ['false']\n",
	} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	url := tokenAgent(t, dir+"/token")
	rig.Must(t, os.WriteFile(dir+"/open", []byte("[contexts.open]\nurl = '"+url+"'\ntoken_file = 'token'\n"), 0o600))
	long := strings.Repeat("x", 100)
	place := strings.NewReplacer("$DIR", dir, "$URL", url, "$ADDRESS", strings.TrimPrefix(url, "ws://"), "$EMPTY", "",
		"$BYTE", "\xff", "$LONG", long, "$LENGTH", strconv.Itoa(len(dir+"/"+long)))

	_, mistakes, _ := strings.Cut(string(rig.Value(os.ReadFile("testdata/mistakes.txt"))), "\n\n")
	ran := 0
	for mistake := range strings.SplitSeq(mistakes, "\n\n") {
		line, want, found := strings.Cut(mistake, "\n")
		if !found && strings.HasPrefix(line, "# ") {
			continue
		}
		ran++
		t.Run(strings.ReplaceAll(line, "/", "|"), func(t *testing.T) {
			t.Parallel()
			words := strings.Split(line, " ")
			at := slices.Index(words, "agent")
			rig.Is(t, words[0] == "$" && at > 0, true, "the line begins with $, variables and agent")
			for i := range words {
				words[i] = place.Replace(words[i])
			}
			cmd := agentCommand(t, words[at+1:]...)
			cmd.Env = append(words[1:at:at], "HOME="+dir, "PATH="+os.Getenv("PATH"), "GOCOVERDIR="+os.Getenv("GOCOVERDIR")) // go test -cover
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run() // the exit code says it
			// The agent says so after a second, which a busy machine may need for nothing.
			said := strings.TrimPrefix(stderr.String(), "agent: waiting for environment e: no answer yet\n")
			said += fmt.Sprintf("[%d]", cmd.ProcessState.ExitCode())
			rig.Is(t, said, strings.TrimSpace(place.Replace(want)), "it says")
			rig.Is(t, stdout.String(), "", "it prints")
		})
	}
	rig.Is(t, ran < 300, false, "only %d mistakes", ran)
}

// tokenAgent starts an agent that wants the token in a file, and returns its URL.
func tokenAgent(t *testing.T, file string) string {
	t.Helper()
	cmd := agentCommand(t, "--listen", "127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", file)
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	rig.Must(t, err)
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test ends it
	return strings.TrimSpace(rig.Value(bufio.NewReader(stdout).ReadString('\n')))
}
