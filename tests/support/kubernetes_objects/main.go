// Reads YAML documents on standard input as the API server reads what is applied with --validate=strict: into Kubernetes' own
// types, by apiVersion and kind. A field that the type does not have, or has twice, is an error; so is a kind that is unknown.
// Prints "kind/name" of each, or the errors, and then ends with 1.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	wrong := false
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = told(strict, document)
		}
		if err != nil {
			fmt.Println(err)
			wrong = true
		}
	}
	if wrong {
		os.Exit(1)
	}
}

func told(strict runtime.Serializer, document []byte) error {
	object, kind, err := strict.Decode(document, nil, nil)
	if err != nil {
		return err
	}
	named, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	fmt.Printf("%s/%s\n", kind.Kind, named.GetName())
	return nil
}
