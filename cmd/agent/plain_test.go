package main

import (
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/cmd/agent/plain"
	"github.com/execagent/execagent/cmd/internal/commandline"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// TestDefaultsInTags: the tags and helps of the server's flags name the defaults of
// the packages that have them.
func TestDefaultsInTags(t *testing.T) {
	t.Parallel()
	flags, _, err := parse(nil, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	f := flags.(*serverFlags)
	if f.ConcurrentRequests != rpc.DefaultConcurrency || f.RetainBytes != agent.DefaultRetainBytes || f.SessionTTL != agent.DefaultSessionTTL ||
		f.NamedSessionTTL != agent.DefaultNamedSessionTTL {
		t.Errorf("%+v", f)
	}
	const retain, skew = 256 << 20, 30 * time.Second // as the help says
	if agent.DefaultRetainTotalBytes != retain || transport.DefaultClockSkew != skew {
		t.Error("the help names other defaults for --retain-total-bytes or --ws-max-clock-skew-seconds")
	}
}

// TestPlainTags: plain.Of reads the same out of the tags of a flag as the parser
// does.
func TestPlainTags(t *testing.T) {
	t.Parallel()
	parser, err := newParser(io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range parser.Model.Children {
		flags := newFlags(command.Name)
		if flags == nil {
			if len(command.Children) == 0 && !slices.ContainsFunc(command.Positional, func(p *kong.Positional) bool { return !p.Passthrough || p.Tag.Optional }) {
				t.Errorf("%s is always parsed by the whole grammar, and has no arguments of its own", command.Name)
			}
			continue
		}
		type tags struct {
			Name, Short, Env, Default, Enum string
			HasDefault, Path, Required      bool
		}
		var want, got []tags
		for _, flag := range command.Flags {
			short := ""
			if flag.Short != 0 {
				short = string(flag.Short)
			}
			want = append(want, tags{
				flag.Name, short, strings.Join(flag.Envs, ","), flag.Default, flag.Enum,
				flag.HasDefault, flag.Tag.Type == "path", flag.Required,
			})
		}
		for _, f := range plain.Of(flags) {
			if !f.Arguments {
				got = append(got, tags{
					f.Name, f.Short, strings.Join(f.Env, ","), f.Default, strings.Join(f.Enum, ","),
					f.HasDefault, f.Path, f.Required,
				})
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-parser +plain):\n%s", command.Name, diff)
		}
	}
}

// TestParsePlain: the lines that are used most are parsed without the parser, and
// those that only the parser can answer are not.
func TestParsePlain(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"":                           true,
		"--listen ws://127.0.0.1:0":  true,
		"exec-server --listen=stdio": true,
		"--remote https://r --environment-id e --registration-bearer-stdin": true,
		"exec -t -e A=1 -e B -C /tmp -- make test":                          true,
		"exec true":                        true,
		"sandbox --workspace /tmp -- true": true,
		"doctor --json":                    true,
		"version":                          true,
		"ps --url :1 -q":                   true,
		"exec -d --url :1 --name n -- x":   true,
		"kill --url :1 n -s INT":           false,
		"logs --url :1 n":                  false,
		"forward --connect ws://h:1 --remote https://r --environment-id e": true,
		"cp --url :1 a :b":                  true,
		"cp --url :1 a - :b":                false, // wrong
		"ls --url :1":                       true,
		"ls --url :1 / -l":                  false,
		"cat --url :1":                      false,
		"exec":                              false,
		"exec -tn true":                     false,
		"exec --nope true":                  false,
		"exec --help":                       false,
		"--version":                         false,
		"--help":                            false,
		"--listen":                          false,
		"--listen stdio x":                  false,
		"--listen stdio exec true":          false,
		"--log-level loud":                  false,
		"--concurrent-requests 0":           false,
		"--log-level info --log-level warn": false,
		"version x":                         false,
		"exec --context=x true":             true,
		"exec --local true":                 true,
		"environments -q":                   true,
		"context list":                      false,
		"login http://127.0.0.1:1":          false,
		"nope":                              false,
	} {
		if got := plainFlags(strings.Fields(line)) != nil; got != want {
			t.Errorf("agent %s: plain %v, want %v", line, got, want)
		}
	}
}

// FuzzParsePlain: a line that parseOne takes gives the same flags as with the
// parser. In the fuzzer's input each argument stands on a line of its own.
func FuzzParsePlain(f *testing.F) {
	for _, seed := range []string{
		"exec-server\n--listen\nstdio", "exec\n-e\nA=1\n-e\nB=2\n--\ntrue\n--x", "sandbox\n--workspace=/tmp/..\n-- x", "--session-ttl\n5m",
		"--max-processes\n9\n--retain-total-bytes=9", "exec\n-C\n/a//b\ntrue", "doctor\n--json\n--state-dir\n/", "--ws-auth=", "exec\n-t\n-n\n-\nx", "\n--listen",
		"--retain-bytes\n0x10", "exec\n--env=\ntrue", "--listen=\n--", "--ws-token-file=/\xff", "exec\n\xff", "cp\n--url\n:1\na,b\n:c", "ls\n--url\n:1\n-l", "rm\n-rf\n--url\n:1\nx\n-", "cp\n--url\n:1\n-\n:", "cat\n--url=:1\n\n", "exec\n--dir=/\n--dir=/tmp\ntrue",
		"kill\n--url=:1\nn\n-s\nINT", "wait\n--url=:1\nn", "ps\n-q\n--url=:1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\n")
		got := plainFlags(args)
		if got == nil {
			return
		}
		parser, err := newParser(io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		parser.Exit = func(int) { t.Errorf("the parser does %q at once", args) }
		parsed, err := commandline.Parse(parser, args)
		if err != nil {
			t.Fatalf("%q is plain, and the parser says %v", args, err)
		}
		want := parsed.Selected().Target.Addr().Interface()
		if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Errorf("%q (-parser +plain):\n%s", args, diff)
		}
	})
}

// TestParsePlainVariables: the flags are the same as with the parser also where
// variables give values.
func TestParsePlainVariables(t *testing.T) {
	for name, values := range map[string][]string{
		"AGENT_LISTEN": {"", "stdio"}, "AGENT_LOG_LEVEL": {"", "loud", "warn"}, "AGENT_RETAIN_BYTES": {"", "9", "x", "-1"},
		"AGENT_ENV": {"", "A=1", "A=1,B=2"}, "AGENT_TTY": {"", "1", "yes", "TRUE", "x"}, "AGENT_DIR": {"", "/tmp"}, "AGENT_SESSION_TTL": {"", "1h", "9"},
		"AGENT_SANDBOX_WORKSPACE": {"", "/tmp"}, "AGENT_SANDBOX_POLICY": {"", "-", "x", "/x/"}, "AGENT_EXIT_ON_STDIN_CLOSE": {"", "1"},
		exitOnStdinClose: {"0", "no"}, "AGENT_RETAIN_TOTAL_BYTES": {"", "7"}, "AGENT_WS_TOKEN_FILE": {"", "/x", "x"}, "AGENT_MAX_PROCESSES": {"", "3", "03"},
	} {
		for _, value := range values {
			t.Setenv(name, value)
			for _, line := range []string{"", "--listen=stdio", "exec true", "exec -e X=1 true", "sandbox true", "sandbox --workspace=/ true", "version", "doctor"} {
				args := strings.Fields(line)
				got := plainFlags(args)
				if got == nil {
					continue
				}
				parser, err := newParser(io.Discard, io.Discard)
				if err != nil {
					t.Fatal(err)
				}
				parsed, err := commandline.Parse(parser, args)
				if err != nil {
					t.Errorf("%s=%s agent %s is plain, and the parser says %v", name, value, line, err)
					continue
				}
				if diff := cmp.Diff(parsed.Selected().Target.Addr().Interface(), got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
					t.Errorf("%s=%s agent %s (-parser +plain):\n%s", name, value, line, diff)
				}
			}
			os.Unsetenv(name)
		}
	}
}

// plainFlags are the flags of a plain line, without files; nil for every other line.
func plainFlags(args []string) command {
	flags, _ := parseOne(args, nil)
	return flags
}
