// Package probe finds out what this host can do to confine a process, by doing it: [Host] starts
// children of our own binary ([Main]), each of which puts one layer on and tries what it forbids.
// What does not work is told with its error and what an operator can do about it; facts about the
// host serve that remedy alone, never the verdict. Linux only.
package probe
