// Reads a Dockerfile on standard input as docker build does, by BuildKit's own parser and linter. Prints for each stage its base
// image and the keywords of its instructions; ends with 1, and says why, where docker build would refuse it or warn.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	parsed, err := parser.Parse(os.Stdin)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	warnings := len(parsed.Warnings)
	for _, warning := range parsed.Warnings {
		fmt.Println(warning.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, told string, _ []parser.Range) {
		fmt.Printf("%s: %s\n", rule, told)
		warnings++
	}})
	stages, _, err := instructions.Parse(parsed.AST, lint)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, stage := range stages {
		words := []string{stage.BaseName}
		for _, command := range stage.Commands {
			words = append(words, strings.ToUpper(command.Name()))
		}
		fmt.Println(strings.Join(words, " "))
	}
	if warnings > 0 {
		os.Exit(1)
	}
}
