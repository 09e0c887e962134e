// kueue is Kueue's manager without what no workload of a sandbox meets: the dispatch to other clusters, the visibility
// API, and the integrations of kinds that have no controller here.
//
//	kueue --kubeconfig FILE --webhook-port PORT --cert-dir FOLDER
//
// The rest is as in Kueue's own manifests, but for what reaches beyond loopback: it serves its webhooks on loopback
// alone, with a certificate that it is given, and no metrics and no probes. It elects no leader, as it is the only one.
//
// With CONTROLPLANE_PARENT_PID in the environment it dies with the thread that started it, however that one dies.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	autoscaling "k8s.io/autoscaler/cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	config "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueuev1beta1 "sigs.k8s.io/kueue/apis/kueue/v1beta1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	queuecache "sigs.k8s.io/kueue/pkg/cache/queue"
	schedulercache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/admissionchecks/provisioning"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/controller/tas"
	tasindexer "sigs.k8s.io/kueue/pkg/controller/tas/indexer"
	"sigs.k8s.io/kueue/pkg/scheduler"
	"sigs.k8s.io/kueue/pkg/util/kubeversion"
	"sigs.k8s.io/kueue/pkg/webhooks"

	_ "sigs.k8s.io/kueue/pkg/controller/jobs/deployment"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/job"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/jobset"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/pod"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/statefulset"
	_ "sigs.k8s.io/kueue/pkg/controller/jobs/trainjob"
)

var integrations = []string{
	"batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob", "pod", "deployment", "statefulset",
}

func main() {
	if parent := os.Getenv("CONTROLPLANE_PARENT_PID"); parent != "" {
		dieWith(parent)
	}
	if len(os.Args) < 2 || os.Args[1] != "kueue" {
		fmt.Fprintln(os.Stderr, "usage: kueue kueue --kubeconfig FILE --webhook-port PORT --cert-dir FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	flags := flag.NewFlagSet("kueue", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	port := flags.Int("webhook-port", 0, "where on loopback webhooks are served")
	certDir := flags.String("cert-dir", "", "with tls.crt and tls.key of the webhooks")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	ctrl.SetLogger(zap.New())
	client, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client.QPS, client.Burst = 50, 100
	types := runtime.NewScheme()
	if err := addTypes(types); err != nil {
		return err
	}
	settings := config.Configuration{Integrations: &config.Integrations{Frameworks: integrations}}
	types.Default(&settings)
	manager, err := ctrl.NewManager(client, ctrl.Options{
		Scheme:                 types,
		Metrics:                metrics.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		WebhookServer:          webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *certDir}),
	})
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := setUp(ctx, manager, client, &settings); err != nil {
		return err
	}
	return manager.Start(ctx)
}

func addTypes(types *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, kueue.AddToScheme, kueuev1beta1.AddToScheme, config.AddToScheme, autoscaling.AddToScheme,
	} {
		if err := add(types); err != nil {
			return err
		}
	}
	return jobframework.ForEachIntegration(func(_ string, integration jobframework.IntegrationCallbacks) error {
		if integration.AddToScheme == nil {
			return nil
		}
		return integration.AddToScheme(types)
	})
}

func setUp(ctx context.Context, manager ctrl.Manager, client *rest.Config, settings *config.Configuration) error {
	cache := schedulercache.New(manager.GetClient())
	queues := queuecache.NewManager(manager.GetClient(), cache)
	go cache.CleanUpOnContext(ctx)
	go queues.CleanUpOnContext(ctx)
	if err := setUpIndexes(ctx, manager); err != nil {
		return err
	}
	if name, err := core.SetupControllers(manager, queues, cache, settings, nil); err != nil {
		return fmt.Errorf("controller %s: %w", name, err)
	}
	if name, err := tas.SetupControllers(manager, queues, cache, settings, nil); err != nil {
		return fmt.Errorf("controller %s: %w", name, err)
	}
	if err := setUpProvisioning(ctx, manager); err != nil {
		return err
	}
	if err := setUpIntegrations(ctx, manager, client, settings, cache, queues); err != nil {
		return err
	}
	if name, err := webhooks.Setup(manager, nil); err != nil {
		return fmt.Errorf("webhook %s: %w", name, err)
	}
	return manager.Add(scheduler.New(queues, cache, manager.GetClient(), manager.GetEventRecorderFor(constants.AdmissionName)))
}

func setUpIndexes(ctx context.Context, manager ctrl.Manager) error {
	if err := indexer.Setup(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	if err := tasindexer.SetupIndexes(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	return jobframework.SetupIndexes(ctx, manager.GetFieldIndexer(), jobframework.WithEnabledFrameworks(integrations))
}

// setUpProvisioning adds the admission check that makes ProvisioningRequests, where the cluster has that kind, as GKE's
// clusters do. Kueue's own main does the same.
func setUpProvisioning(ctx context.Context, manager ctrl.Manager) error {
	if err := provisioning.ServerSupportsProvisioningRequest(manager); err != nil {
		return nil
	}
	if err := provisioning.SetupIndexer(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	controller, err := provisioning.NewController(
		manager.GetClient(), manager.GetEventRecorderFor("kueue-provisioning-request-controller"), nil,
	)
	if err != nil {
		return err
	}
	return controller.SetupWithManager(manager)
}

func setUpIntegrations(
	ctx context.Context, manager ctrl.Manager, client *rest.Config, settings *config.Configuration,
	cache *schedulercache.Cache, queues *queuecache.Manager,
) error {
	server, err := discovery.NewDiscoveryClientForConfig(client)
	if err != nil {
		return err
	}
	version := kubeversion.NewServerVersionFetcher(server)
	if err := version.FetchServerVersion(); err != nil {
		return err
	}
	namespaces, err := v1.LabelSelectorAsSelector(settings.ManagedJobsNamespaceSelector)
	if err != nil {
		return err
	}
	return jobframework.SetupControllers(ctx, manager, ctrl.Log.WithName("setup"),
		jobframework.WithKubeServerVersion(version),
		jobframework.WithEnabledFrameworks(integrations),
		jobframework.WithManagerName(constants.KueueName),
		jobframework.WithManagedJobsNamespaceSelector(namespaces),
		jobframework.WithCache(cache),
		jobframework.WithQueues(queues),
	)
}

// dieWith asks the kernel for SIGKILL at the parent's death, then looks whether it had died before that.
func dieWith(parent string) {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		fmt.Fprintln(os.Stderr, "prctl(PR_SET_PDEATHSIG):", errno)
		os.Exit(1)
	}
	if pid, err := strconv.Atoi(parent); err != nil || os.Getppid() != pid {
		fmt.Fprintf(os.Stderr, "the parent, process %s, is gone (now %d)\n", parent, os.Getppid())
		os.Exit(1)
	}
}
