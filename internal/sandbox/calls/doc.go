// Package calls has the one table of the system calls that a supervised command leaves
// to its supervisor (supervised.md 5). The filters of package enforce are compiled
// from it, and package supervise has a method for each call that some level leaves to
// the supervisor; tests hold both against the table. The table is a pure value and
// builds everywhere. It never changes, so everything may be used at once.
//
// docs/dev/recipes.md says how to add a call that the supervisor does.
package calls
