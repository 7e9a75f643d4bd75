// Package metrics counts events of an agent, and prints the counts as a page for Prometheus.
//
//	Set     families with their help and type, those of the process too, and the page
//	Agent   the metrics of an agent, in a Set: one method for each thing that happens
//
// A Set belongs to one agent; nothing is counted in variables of this package. Other parts of the
// agent (the relay's link, a listener) add metrics of their own to the Set. docs/metrics.md lists
// all metrics, and a test compares the list with the page.
//
// No label has an id, a path or any other text from outside. All values of a label are known when
// its metric is added, so no client can make the page grow.
//
// The package uses no library (docs/adr/0015-metrics.md), because code that runs before main also
// runs in the hidden modes of package helper, where nothing may be open.
package metrics
