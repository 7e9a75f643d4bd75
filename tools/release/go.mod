module github.com/execagent/execagent/tools/release

go 1.26.8

require golang.org/x/mod v0.42.0 // semantic versions
