// Package franztests holds the version of franz-go whose own tests scripts/client_suites.py runs.
package franztests

import _ "github.com/twmb/franz-go/pkg/kgo"
