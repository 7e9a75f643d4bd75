package main

import (
	"context"
	"slices"
	"strings"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// skillsFlags say how the skills at an agent are listed.
type skillsFlags struct {
	agentFlags
	listFlags
}

func (*skillsFlags) Help() string {
	return `Lists the skills and plugins that are installed for the agent's user, in CODEX_HOME/plugins/cache, CODEX_HOME/skills, ~/.agents/skills and /etc/codex/skills on the agent's host. A skill's name begins with the namespace of its plugin. Files that are passed over are named on standard error, with the reason: a file that cannot be read, a link called SKILL.md, a SKILL.md that does not begin with a name and a description between two lines of ---.

Examples:

    agent skills --url 127.0.0.1:7000
    agent skills --environment-id build-1 -o json | jq '.plugins[].id'

Exit codes: 0, 1 when agent itself failed or the agent is too old, 124 after --timeout, 2 for a wrong command line.`
}

func (f *skillsFlags) run(sys program.System) int {
	return f.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		found, err := installed(ctx, c)
		if err != nil {
			return 0, err
		}
		if f.Output == "json" {
			return program.ExitOK, program.PrintJSON(sys.Stdout, found)
		}
		for _, line := range slices.Concat(found.Warnings, found.Details) {
			program.Complain(sys.Stderr, program.Plain(line))
		}
		rows := skillRows(found)
		if f.Quiet {
			rows = slices.DeleteFunc(rows, func(row []string) bool { return row[0] == noSkill })
		}
		return program.ExitOK, printList(sys.Stdout, f.listFlags, rows, func(row []string) string { return row[0] },
			skillHeading, func(row []string) []string { return row })
	})
}

// installed asks what is installed, with details. An agent of an older version has no details.
func installed(ctx context.Context, c *client.Client) (*protocol.DiscoverInstalledResult, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	if !info.Capabilities.CapabilityDiscoveryV2 {
		return nil, &client.UnsupportedError{Feature: "capability discovery"}
	}
	params := protocol.DiscoverInstalledParams{Cwd: protocol.NewPathURI("/"), Details: true}
	found := new(protocol.DiscoverInstalledResult)
	return found, c.Call(ctx, protocol.MethodDiscoverInstalled, &params, found)
}

// skillHeading is the heading of the columns of skillRows.
const skillHeading = "SKILL\tFROM\tFILE\tDESCRIPTION"

// noSkill stands for the name in the row of a plugin without skills.
const noSkill = "-"

// skillRows returns a row for each skill, and a row for each plugin without skills.
func skillRows(found *protocol.DiscoverInstalledResult) (rows [][]string) {
	add := func(cells ...string) {
		for i, cell := range cells {
			// Texts in files must not move columns or the cursor.
			cells[i] = program.Plain(strings.ReplaceAll(cell, "\t", " "))
		}
		rows = append(rows, cells)
	}
	for _, plugin := range found.Plugins {
		for _, skill := range plugin.Skills {
			add(skill.Name, plugin.ID, where(skill.Path), describe(&skill))
		}
		if len(plugin.Skills) == 0 {
			add(noSkill, plugin.ID, where(plugin.Root), plugin.DisplayName)
		}
	}
	for _, skill := range found.Skills {
		from := ""
		if skill.DiscoveryRoot != nil {
			from = skill.DiscoveryRoot.ID
		}
		add(skill.Name, from, where(skill.Path), describe(&skill))
	}
	return rows
}

// where returns a path in the form that people read.
func where(p protocol.PathURI) string {
	if path, err := p.Native(); err == nil {
		return path
	}
	return p.String()
}

// maxDescription bounds a description in the table, in characters.
const maxDescription = 60

func describe(s *protocol.InstalledSkill) string {
	text := []rune(s.Description)
	if s.ShortDescription != nil {
		text = []rune(*s.ShortDescription)
	}
	if len(text) > maxDescription {
		return string(text[:maxDescription-1]) + "…"
	}
	return string(text)
}
