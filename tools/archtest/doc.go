// Package archtest has the checks of the whole tree that neither the compiler nor the linter makes:
// which packages may not depend on which, that what comments and documents cite exists, and that
// documents say the same as the programs. It is a part of the tools' module, so that the product's
// module has no package for it. `make check` runs it.
package archtest
