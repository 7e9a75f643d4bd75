// Package archtest has the checks of the whole tree that neither the compiler nor the linter makes:
// that packages have no forbidden dependencies, that everything cited in comments and documents
// exists, and that documents say the same as the programs. It is a part of the tools' module, so
// that the product's module has no package for it. `make check` runs it.
package archtest
