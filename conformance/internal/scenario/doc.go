// Package scenario runs the scenarios of sdk/scenarios with the Go client, as the tests of the other clients run
// them with theirs. sdk/scenarios/README.md explains what a scenario is.
//
// What the Go client leaves to its caller, or to the program agent, is lacking here (ErrLacks): words for sandboxes
// and bounds, copies of trees, forwarded ports, and checks of exit codes. Anything else that is not known here fails
// its scenario (ErrUnknown).
package scenario
