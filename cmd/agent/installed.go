// Package installed shows people which skills and plugins are installed at an agent.
package main

import (
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// skillHeading is over the columns of [Rows].
const skillHeading = "SKILL\tFROM\tFILE\tDESCRIPTION"

// noSkill is in the place of the name where a plugin has no skills.
const noSkill = "-"

// skillRows returns a row for each skill, and one for each plugin without.
func skillRows(found *protocol.DiscoverInstalledResult) (rows [][]string) {
	add := func(cells ...string) {
		for i, cell := range cells {
			// A file must not move the columns, nor a terminal's cursor.
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

// where is a path as people write it.
func where(p protocol.PathURI) string {
	if path, err := p.Native(); err == nil {
		return path
	}
	return p.String()
}

// maxDescription is how much of a description the table shows, in characters.
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
