"""Clients of metadata that tools/setup.sh --clients installs by name, and short programs for them.

Each prints the facts that it has found as JSON, except the fetchers, which print the bodies of URLs
one after the other. None of them has a retry of its own: those are its library's.
"""

from tests.harness.netns import ROOT

HOME = ROOT / ".cache" / "clients"
PYTHON = HOME / "python/bin/python"
COLLECT = HOME / "python/bin/os-collect-config"
NODE_MODULES = HOME / "node_modules"
IGNITION = ROOT / ".cache/ignition/usr/lib/dracut/modules.d/30ignition/ignition"

CLOUDBASE = """
import json
from cloudbaseinit import conf
from cloudbaseinit.metadata.services import base, ec2service, httpservice, packet
for group in ("openstack", "ec2", "packet"):
    conf.CONF.set_override("metadata_base_url", "http://169.254.169.254/", group)
for group in ("openstack", "ec2"):
    # It is for Windows' routes.
    conf.CONF.set_override("add_metadata_private_ip_route", False, group)

def of(read):
    try:
        found = read()
    except base.NotExistingMetadataException:
        return None
    return found.decode() if isinstance(found, bytes) else found

found = {}
for kind in (httpservice.HttpService, ec2service.EC2Service, packet.PacketService):
    service = kind()
    assert service.load(), kind
    found[kind.__name__] = [of(service.get_host_name), of(service.get_user_data)]
    if kind is not packet.PacketService:
        keys = sorted(of(service.get_public_keys) or [])
        found[kind.__name__] += [of(service.get_instance_id), keys]
service = httpservice.HttpService()
found["certificates"] = of(service.get_client_auth_certs)
found["links"] = len(service.get_network_details_v2().links)
found["password"] = [service.is_password_set, service.post_password(b"x"), service.is_password_set]
print(json.dumps(found))
"""
"""cloudbase-init 1.1: its services for OpenStack, EC2 and Equinix. It repeats a request five times,
four seconds apart, unless the answer is 404. It reads NoCloud from disks alone."""

SDK = """
const { MetadataService } = require("@aws-sdk/ec2-metadata-service");
const { fromInstanceMetadata } = require("@smithy/credential-provider-imds");
const service = new MetadataService();
(async () => {
  const found = {};
  for (const path of ["hostname", "instance-id", "instance-type"])
    found[path] = await service.request(`/latest/meta-data/${path}`, {});
  found.userData = await service.request("/latest/user-data", {}).catch(() => null);
  await fromInstanceMetadata()().catch((error) => { found.role = error.statusCode; });
  console.log(JSON.stringify(found));
  process.exit();
})();
"""
"""The JavaScript SDK 3: three repetitions, with a pause before each, unless the answer is 400, 403
or 404. It does not read the body of such an answer: node would end with the connection, which the
service keeps for ``keepalive_timeout``."""

JAVA = """
import java.net.*;
import java.net.http.*;

public class Fetch {
    static final String NAME = "X-aws-ec2-metadata-token";

    public static void main(String[] urls) throws Exception {
        var token_url = URI.create(urls[0]).resolve("/latest/api/token").toURL();
        var put = (HttpURLConnection) token_url.openConnection();
        put.setRequestMethod("PUT");
        put.setRequestProperty(NAME + "-ttl-seconds", "60");
        var token = new String(put.getInputStream().readAllBytes());
        var client = HttpClient.newHttpClient();
        for (var url : urls) {
            var get = HttpRequest.newBuilder(URI.create(url)).header(NAME, token);
            var reply = client.send(get.build(), HttpResponse.BodyHandlers.ofString());
            if (reply.statusCode() == 200) System.out.print(reply.body());
        }
    }
}
"""
"""HttpClient asks for HTTP/2 with each request, by Upgrade."""

GO = """
package main
import ("io"; "net/http"; "os")

func send(method, url, name, value string) (int, []byte) {
	request, _ := http.NewRequest(method, url, nil)
	request.Header.Set(name, value)
	reply, err := http.DefaultClient.Do(request)
	if err != nil { panic(err) }
	body, _ := io.ReadAll(reply.Body)
	return reply.StatusCode, body
}

func main() {
	const name = "X-aws-ec2-metadata-token"
	_, token := send("PUT", "http://169.254.169.254/latest/api/token", name + "-ttl-seconds", "60")
	for _, url := range os.Args[1:] {
		status, body := send("GET", url, name, string(token))
		if status == 200 { os.Stdout.Write(body) }
	}
}
"""
